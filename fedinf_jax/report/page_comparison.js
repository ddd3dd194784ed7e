// The table of the clients that two runs share, and the way in.
const FIRST_ROWS = 200;
const view = {sort: "-size", by: 0, find: "", changed: false, all: false};
const value = (run, k) => values[2 * view.by + run].fil[k];  // 0: B, 1: A
const known = (k) => value(0, k) !== null && value(1, k) !== null;
const change = (k) => known(k) ? value(1, k) - value(0, k) : null;
const compared = () => data.compared[view.by];
const moved = (k) => (compared().sign[k] ? "sign " : "") +
  (compared().group[k] ? "group" : "");
const effects = (k) => compared().effects.map((list) => list[k] || "\u2013");
const ranks = (k) => compared().ranks.map((list) => list[k]);
// key, title, what it is sorted by for client k, its cell.
const COLUMNS = [
  ["client", "client", (k) => data.ids[k]],
  ["b", "in B", (k) => value(0, k), (k) => signed(value(0, k), 3)],
  ["a", "in A", (k) => value(1, k), (k) => signed(value(1, k), 3)],
  ["size", "change", (k) => known(k) ? Math.abs(change(k)) : null,
   (k) => signed(change(k), 3)],
  ["rank", "rank, B to A",
   (k) => known(k) ? Math.abs(ranks(k)[1] - ranks(k)[0]) : null,
   (k) => known(k) ? ranks(k).join(" to ") : "\u2013"],
  ["effect", "group, B to A", (k) => effects(k).join(" to "),
   (k) => effects(k).join(" to ")],
  ["moved", "changed", (k) => moved(k), (k) => moved(k).trim()
    .replace(" ", " and ")],
];
const isText = (key) => ["client", "effect"].includes(key);

function tableHead() {
  COLUMNS.forEach(([key, title]) => {
    const th = add($("table").tHead.rows[0], "th",
                   {scope: "col", "data-key": key, class: key});
    add(th, "button", {type: "button"}, title).onclick = () => {
      // Numbers start with the largest, words with the first.
      const first = isText(key) ? key : "-" + key;
      const second = isText(key) ? "-" + key : key;
      changed("sort", view.sort === first ? second : first);
    };
  });
}

function ordered() {
  const part = view.find.trim().toLowerCase();
  const list = data.ids.map((id, k) => k).filter((k) =>
    data.ids[k].toLowerCase().includes(part) && (!view.changed || moved(k)));
  return sorted(list, COLUMNS, view.sort);
}

function tableUpdate() {
  const table = $("table"), list = ordered();
  const shown = view.all ? list : list.slice(0, FIRST_ROWS);
  const rows = document.createDocumentFragment();
  shown.forEach((k) => {
    const row = add(rows, "tr");
    row.dataset.k = k;
    COLUMNS.forEach(([key, , of, cell]) => {
      if (key === "client") add(row, "th", {scope: "row"}, of(k));
      else add(row, "td", {class: key}, cell(k));
    });
  });
  table.tBodies[0].replaceChildren(rows);
  table.tHead.querySelectorAll("th").forEach((th) => {
    th.setAttribute("aria-sort", th.dataset.key !== view.sort.replace(/^-/, "")
      ? "none" : view.sort[0] === "-" ? "descending" : "ascending");
  });
  $("count").textContent =
    `${list.length.toLocaleString("en")} of ${plural(data.ids.length, "client")}`;
  $("more").hidden = shown.length === list.length;
  $("more").textContent = `Show all ${list.length.toLocaleString("en")}`;
  $("find").value = view.find;
  $("by").value = view.by;
  $("changed").checked = view.changed;
}

function changed(key, to) {
  view[key] = to;
  tableUpdate();
}

function csvText() {
  const heads = ["client_id"], columns = [data.ids];
  data.compared.forEach((score, i) => {
    const [b, a] = [values[2 * i].fil, values[2 * i + 1].fil];
    heads.push(`fil_a_${score.name}`, `fil_b_${score.name}`,
               `effect_a_${score.name}`, `effect_b_${score.name}`);
    columns.push(a, b, score.effects[1], score.effects[0]);
  });
  return csvOf(heads, columns);
}

$("csv").onclick = () => download(csvText(), "comparison.csv");
$("find").oninput = () => changed("find", $("find").value);
$("changed").onchange = () => changed("changed", $("changed").checked);
$("by").onchange = () => changed("by", Number($("by").value));
$("more").onclick = () => changed("all", true);

markRows();

// A dot leads to its client in the table.
function route() {
  const id = new URLSearchParams(location.hash.slice(1)).get("client");
  if (!byId.has(id)) return;
  changed("find", id);
  $("clients").scrollIntoView();
}

if (remembered()) document.documentElement.dataset.theme = remembered();
setTheme(document.documentElement.dataset.theme);
options($("by"), data.compared.map((s, i) => [i, s.words]), 0);
scatter();
tableHead();
tableUpdate();
addEventListener("hashchange", route);
route();
document.documentElement.dataset.milliseconds =
  Math.round(performance.now() - started);
