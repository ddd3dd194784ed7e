// The table of all clients, its view as a link, the CSV, and the way in.
const FIRST_ROWS = 200;
const view = {sort: "-value", by: String(data.by), measure: "loss",
              find: "", drawn: false, all: false};
// key, title, value of client k, whether it is about the loss only.
const COLUMNS = [
  ["client", "client", (k) => data.ids[k]],
  ["value", "influence", (k) => shownValue(k)],
  ["interval", "95 % interval", (k) => field("fil_low", k), true],
  ["own", "on its own examples", (k) => field("fil_own", k), true],
  ["others", "on everybody else's", (k) => field("fil_others", k), true],
  ["effect", "effect", (k) => field("effect", k) || ""],
  ["examples", "examples", (k) => data.examples[k]],
  ["times", "rounds drawn", (k) => data.times[k]],
];

// By whose account client k is shown: that of the choice, unless it stands for
// the run's own, of which some may be exact.
function shownBy(k) {
  return view.by === String(data.by) ? scoreOf(k) : Number(view.by);
}

function field(name, k) {
  const list = scores.length ? values[shownBy(k)][name] : null;
  return list ? list[k] : null;
}

function shownValue(k) {
  const name = view.measure === "loss" ? "fil" : "fia";
  const value = field(name, k);
  return value === null || name === "fil" ? value : -value;
}

function tableHead() {
  const row = $("table").tHead.rows[0];
  COLUMNS.forEach(([key, title, , lossOnly]) => {
    const th = add(row, "th", {scope: "col", "data-key": key,
                               class: key + (lossOnly ? " loss-only" : "")});
    const button = add(th, "button", {type: "button"}, title);
    button.onclick = () => {
      // Numbers start with the largest, words with the first.
      const text = key === "client" || key === "effect";
      const first = text ? key : "-" + key;
      const second = text ? "-" + key : key;
      view.sort = view.sort === first ? second : first;
      tableUpdate();
      remember();
    };
  });
}

function ordered() {
  const part = view.find.trim().toLowerCase();
  const list = data.ids.map((id, k) => k).filter((k) =>
    data.ids[k].toLowerCase().includes(part) && !(view.drawn && data.times[k] === 0));
  return sorted(list, COLUMNS, view.sort);
}

function tableUpdate() {
  const table = $("table"), body = table.tBodies[0];
  const list = ordered();
  const shown = view.all ? list : list.slice(0, FIRST_ROWS);
  const rows = document.createDocumentFragment();
  shown.forEach((k) => tableRow(rows, k));
  body.replaceChildren(rows);
  const down = view.sort[0] === "-";
  table.tHead.querySelectorAll("th").forEach((th) => {
    th.setAttribute("aria-sort", th.dataset.key !== view.sort.replace(/^-/, "")
      ? "none" : down ? "descending" : "ascending");
  });
  table.classList.toggle("accuracy", view.measure === "accuracy");
  $("count").textContent =
    `${list.length.toLocaleString("en")} of ${plural(data.ids.length, "client")}`;
  $("more").hidden = shown.length === list.length;
  $("more").textContent = `Show all ${list.length.toLocaleString("en")}`;
  $("find").value = view.find;
  $("by").value = view.by;
  $("measure").value = view.measure;
  $("drawn").checked = view.drawn;
}

function tableRow(rows, k) {
  const row = add(rows, "tr");
  row.dataset.k = k;
  add(add(row, "th", {scope: "row"}), "a", {href: linkTo(k)}, data.ids[k]);
  const value = shownValue(k);
  const points = view.measure === "accuracy";
  const said = value === null ? "" : word(value);
  const cell = add(row, "td", {class: "value " + said}, value === null
    ? "\u2013" : points ? signed(100 * value) + " points" : signed(value));
  if (data.screened && view.measure === "loss") {
    const exact = scores[shownBy(k)].name === "exact";
    add(cell, "small", {}, exact ? "exact" : "estimated");
  }
  const low = field("fil_low", k);
  add(row, "td", {class: "interval loss-only"}, low === null ? "\u2013"
    : `${signed(low)} to ${signed(field("fil_high", k))}`);
  add(row, "td", {class: "own loss-only"}, signed(field("fil_own", k)));
  add(row, "td", {class: "others loss-only"}, signed(field("fil_others", k)));
  add(row, "td", {class: "effect"},
      field("effect", k) || said);
  add(row, "td", {class: "examples"}, data.examples[k].toLocaleString("en"));
  add(row, "td", {class: "times"}, data.times[k] === null
    ? "\u2013" : data.times[k].toLocaleString("en"));
}

function tableView() {
  const parts = new URLSearchParams();
  if (view.sort !== "-value") parts.set("sort", view.sort);
  if (view.by !== String(data.by)) parts.set("by", scores[view.by].name);
  if (view.measure !== "loss") parts.set("on", view.measure);
  if (view.find) parts.set("find", view.find);
  if (view.drawn) parts.set("drawn", "1");
  return parts;
}

// A view is a link: #sort=-own&by=relu&on=accuracy&find=f_1&drawn=1
function remember() {
  history.replaceState(null, "", "#" + tableView());
}

function recall(parts) {
  const key = parts.get("sort") || "-value";
  const by = scores.findIndex((s) => s.name === parts.get("by"));
  if (COLUMNS.some((c) => c[0] === key.replace(/^-/, ""))) view.sort = key;
  view.by = String(by >= 0 ? by : data.by);
  view.measure = parts.get("on") === "accuracy" ? "accuracy" : "loss";
  view.find = parts.get("find") || "";
  view.drawn = parts.has("drawn");
  tableUpdate();
  $("clients").scrollIntoView();
}

function csvText() {
  const heads = ["client_id", "num_examples", "times_selected"];
  const columns = [data.ids, data.examples, data.times];
  scores.forEach((s, i) => {
    ["fil", "fia", "fil_own", "fil_others", "fil_low", "fil_high",
     "effect"].forEach((name) => {
      if (!values[i][name]) return;
      heads.push(`${name}_${s.name}`);
      columns.push(values[i][name]);
    });
  });
  return csvOf(heads, columns);
}

$("csv").onclick = () => download(csvText(), "client_influence.csv");

$("find").oninput = () => changed("find", $("find").value);
$("drawn").onchange = () => changed("drawn", $("drawn").checked);
$("by").onchange = () => changed("by", $("by").value);
$("measure").onchange = () => changed("measure", $("measure").value);
$("more").onclick = () => { view.all = true; tableUpdate(); };

function changed(key, value) {
  view[key] = value;
  tableUpdate();
  remember();
}

markRows();

// Where a link leads: to a card, to a view of the table, or to a heading.
function route() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const k = byId.get(parts.get("client"));
  if (k !== undefined) openCard(k);
  else if (card.open) card.close();
  const keys = ["sort", "by", "on", "find", "drawn"];
  if (k === undefined && keys.some((key) => parts.has(key))) recall(parts);
}

if (remembered()) document.documentElement.dataset.theme = remembered();
setTheme(document.documentElement.dataset.theme);
if (scores.length) {
  options($("by"), scoreOptions(), data.by);
  heatMap();
} else {
  $("over-rounds").hidden = true;
  ["by", "measure"].forEach((id) => { $(id).parentNode.hidden = true; });
}
overview();
tableHead();
tableUpdate();
addEventListener("hashchange", route);
route();
document.documentElement.dataset.milliseconds =
  Math.round(performance.now() - started);
