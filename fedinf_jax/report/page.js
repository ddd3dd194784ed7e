(function () {
  "use strict";
  var data = JSON.parse(document.getElementById("data").textContent);
  var find = document.getElementById("find");
  var drawn = document.getElementById("drawn");
  var accuracy = document.getElementById("accuracy");
  var table = document.getElementById("table");
  var collator = new Intl.Collator("en", {numeric: true});
  var labels = {client_id: "client", num_examples: "examples",
                times_selected: "rounds drawn"};
  var kinds = data.keys.map(function (key) {
    return key in labels ? "" : key.slice(0, 3);
  });
  var times = data.keys.indexOf("times_selected");
  var sort = data.sort;

  function add(parent, tag, text, name) {
    var node = parent.appendChild(document.createElement(tag));
    if (text !== undefined) node.textContent = text;
    if (name) node.className = name;
    return node;
  }

  function show(value) {
    var size = Math.abs(value);
    var digits = size < 1e4 ? size.toFixed(data.decimals)
                            : size.toExponential(2);
    return (value > 0 ? "+" : value < 0 ? "\u2212" : "") + digits;
  }

  function cell(row, value, kind) {
    if (value === null) return add(row, "td", "\u2013", kind);
    if (!kind) return add(row, "td", value.toLocaleString("en"));
    var good = kind === "fil" ? value : -value;
    var word = good > 0 ? "helps" : good < 0 ? "hurts" : "no effect";
    var td = add(row, "td", value ? show(value) : "0",
                 kind + (value ? " " + word : ""));
    add(td, "small", word);
  }

  function head() {
    var groups = add(table.tHead, "tr");
    var names = add(table.tHead, "tr");
    add(groups, "td");
    add(groups, "th", "influence on loss (FIL)").colSpan = data.scores.length;
    add(groups, "th", "influence on accuracy (FIA)", "fia").colSpan =
      data.scores.length;
    add(groups, "td").colSpan = 2;
    data.keys.forEach(function (key, i) {
      var th = add(names, "th", undefined, kinds[i]);
      th.scope = "col";
      th.dataset.key = key;
      th.dataset.label = labels[key] || key.slice(4);
      var button = add(th, "button", th.dataset.label);
      button.type = "button";
      button.onclick = function () {
        // Numbers start with the largest, ids with the first.
        var first = i ? "-" + key : key;
        sort = sort !== first ? first : i ? key : "-" + key;
        update();
        remember();
      };
    });
  }

  function body() {
    var rows = document.createDocumentFragment();
    data.rows.forEach(function (values) {
      var row = add(rows, "tr");
      row.values = values;
      values.forEach(function (value, i) {
        if (i) cell(row, value, kinds[i]);
        else add(row, "th", value).scope = "row";
      });
    });
    table.tBodies[0].appendChild(rows);
    return Array.from(table.tBodies[0].rows);
  }

  function update() {
    var down = sort[0] === "-";
    var i = data.keys.indexOf(down ? sort.slice(1) : sort);
    var part = find.value.trim().toLowerCase();
    var count = 0;
    rows.sort(function (a, b) {
      var x = a.values[i], y = b.values[i];
      // Clients without a number come last either way.
      if (x === null || y === null) return (x === null) - (y === null);
      var order = i ? x - y : collator.compare(x, y);
      return down ? -order : order;
    });
    rows.forEach(function (row) {
      row.hidden = row.values[0].toLowerCase().indexOf(part) < 0 ||
        (drawn.checked && !row.values[times]);
      count += !row.hidden;
    });
    table.tBodies[0].append.apply(table.tBodies[0], rows);
    table.tHead.querySelectorAll("[data-key]").forEach(function (th, j) {
      th.setAttribute("aria-sort",
        i !== j ? "none" : down ? "descending" : "ascending");
    });
    table.parentNode.classList.toggle("accuracy", accuracy.checked);
    document.getElementById("count").textContent =
      count.toLocaleString("en") + " of " +
      rows.length.toLocaleString("en") + " clients";
  }

  // A view is a link: #sort=-fil_exact&find=f_1&drawn=1&fia=1
  function remember() {
    var view = new URLSearchParams({sort: sort});
    if (find.value) view.set("find", find.value);
    if (drawn.checked) view.set("drawn", "1");
    if (accuracy.checked) view.set("fia", "1");
    history.replaceState(null, "", "#" + view);
  }

  function recall() {
    var view = new URLSearchParams(location.hash.slice(1));
    var key = view.get("sort");
    if (!key || data.keys.indexOf(key.replace(/^-/, "")) < 0) return false;
    sort = key;
    find.value = view.get("find") || "";
    drawn.checked = view.has("drawn");
    accuracy.checked = view.has("fia");
    return true;
  }

  function open() {
    var linked = recall();
    update();
    if (linked) document.getElementById("clients").scrollIntoView();
  }

  head();
  var rows = body();
  find.oninput = drawn.onchange = accuracy.onchange = function () {
    update();
    remember();
  };
  onhashchange = open;
  open();
})();
