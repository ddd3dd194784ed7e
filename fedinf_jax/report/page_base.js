"use strict";
// The numbers of the run, numbers as text, nodes, themes, and the hint beside
// the pointer. Influence is positive where the client helps.
const started = performance.now();
const data = JSON.parse(document.getElementById("data").textContent);
const UNKNOWN = -32768;
const COLOURS = 6;
const $ = (id) => document.getElementById(id);

function unpack(packed) {
  if (!packed) return null;
  const bytes = Uint8Array.from(atob(packed.data), (c) => c.charCodeAt(0));
  const numbers = new Int16Array(bytes.buffer);
  const count = packed.scale.length ? numbers.length / packed.scale.length : 0;
  return {
    count: count,
    // A client's numbers; null where nothing is known.
    row: (k) => Array.from(numbers.subarray(k * count, (k + 1) * count), (v) =>
      v === UNKNOWN ? null : v * packed.scale[k]),
  };
}

const scores = data.scores;
const values = data.values;
const histories = data.history.map(unpack);
const labels = unpack(data.labels);
const eps = data.eps.map((e) => e && Object.assign({}, e,
  {norm: unpack(e.norm)}));
const byId = new Map(data.ids.map((id, k) => [id, k]));

// The score that speaks for client k: the exact one where only some have it.
function scoreOf(k) {
  const known = scores.length && scores[0].name === "exact" &&
    values[0].fil[k] !== null;
  return data.screened && known ? 0 : data.by;
}

function labelOf(score) {
  return score.words === score.name ? score.name
    : score.words + " (" + score.name + ")";
}

// The first round in which a client took part; Infinity: in none. Where that
// is not known, it is the first evaluation at which it has any influence.
function firstRound(k) {
  if (data.drawn) return data.drawn[k].length ? data.drawn[k][0] : Infinity;
  for (const history of histories) {
    if (!history) continue;
    const i = history.row(k).findIndex((v) => v);
    if (i >= 0) return data.kept[i];
  }
  return Infinity;
}

// Numbers as text.
function digits(value, count) {
  if (value === null || value === undefined || !isFinite(value)) return "\u2013";
  if (!value) return "0";
  const size = Math.abs(value);
  let text = size.toExponential(count - 1);
  const power = Number(text.split("e")[1]);
  if (power >= -5 && power < 6) {
    text = Number(text).toFixed(Math.max(0, count - 1 - power));
  } else {
    text = text.replace("+", "").replace("-", "\u2212");
  }
  return (value < 0 ? "\u2212" : "") + text;
}

function signed(value, count) {
  return (value > 0 ? "+" : "") + digits(value, count || 2);
}

const word = (value) => value > 0 ? "helps" : value < 0 ? "hurts" : "no effect";
const plural = (n, noun) => n.toLocaleString("en") + " " + noun +
  (n === 1 ? "" : "s");

// Nodes. Text goes in as text: an id is never read as markup.
function add(parent, tag, attributes, text) {
  const node = parent.appendChild(document.createElement(tag));
  return dress(node, attributes, text);
}

const picture = document.createElement("template");
picture.innerHTML = "<svg></svg>";
const SVG = picture.content.firstChild.namespaceURI;

function draw(parent, tag, attributes, text) {
  const node = parent.appendChild(document.createElementNS(SVG, tag));
  return dress(node, attributes, text);
}

function dress(node, attributes, text) {
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  return node;
}

function options(select, list, chosen) {
  select.textContent = "";
  list.forEach(([value, text]) => add(select, "option", {value: value}, text));
  select.value = String(chosen);
}

const scoreOptions = () => scores.map((s, i) => [i, labelOf(s)]);

function linkTo(k) {
  return "#" + new URLSearchParams({client: data.ids[k]});
}

function cut(text, length) {
  const letters = Array.from(text);
  return letters.length <= length ? text
    : letters.slice(0, length - 1).join("") + "\u2026";
}

// The hint beside the pointer.
function tip(event, lines) {
  const box = $("tip");
  box.hidden = !lines;
  if (!lines) return;
  box.textContent = "";
  lines.forEach((line, i) => add(box, i ? "span" : "b", {}, line));
  const room = document.documentElement;
  const left = Math.min(event.clientX + 14,
                        room.clientWidth - box.offsetWidth - 6);
  let top = event.clientY + 16;
  if (top + box.offsetHeight > room.clientHeight) {
    top = event.clientY - box.offsetHeight - 12;
  }
  box.style.left = Math.max(4, left) + "px";
  box.style.top = Math.max(4, top) + "px";
}

// A client that is pointed at anywhere is marked everywhere.
const markers = [];
let marked = null;
function mark(k) {
  if (k === marked) return;
  marked = k;
  markers.forEach((show) => show(k));
}

function markRows() {
  $("table").onpointerover = (event) => {
    const row = event.target.closest("tbody tr");
    mark(row ? Number(row.dataset.k) : null);
  };
  $("table").onpointerleave = () => mark(null);
  markers.push((k) => {
    document.querySelectorAll("tr.marked").forEach((row) =>
      row.classList.remove("marked"));
    const row = k === null ? null : document.querySelector(`tr[data-k="${k}"]`);
    if (row) row.classList.add("marked");
  });
}

// What is drawn is drawn again when its room or the colours change.
const pictures = [];
function drawn(host, paint) {
  let width = 0;
  const again = () => {
    width = host.clientWidth;
    if (width) paint(width);
  };
  pictures.push(again);
  again();
  new ResizeObserver(() => {
    if (Math.abs(host.clientWidth - width) > 1) again();
  }).observe(host);
  return again;
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
}

function colour(name) {
  const style = getComputedStyle(document.documentElement);
  return style.getPropertyValue(name).trim();
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  $("theme").setAttribute("aria-pressed", String(isDark()));
  $("theme").textContent = isDark() ? "Light" : "Dark";
  pictures.forEach((again) => again());
}

function remembered() {
  try { return localStorage.getItem("theme"); } catch { return null; }
}

$("theme").onclick = () => {
  const theme = isDark() ? "light" : "dark";
  setTheme(theme);
  try { localStorage.setItem("theme", theme); } catch { /* not allowed */ }
};

// Paper is white.
let before;
addEventListener("beforeprint", () => {
  before = document.documentElement.dataset.theme;
  setTheme("light");
});
addEventListener("afterprint", () => setTheme(before));

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = add(document.body, "textarea", {}, text);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  const old = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = old; }, 1500);
}

document.querySelectorAll(".copy").forEach((button) => {
  button.onclick = () =>
    copy(button.previousElementSibling.textContent, button);
});

// Tables: the order of ids, and CSV.
const collator = new Intl.Collator("en", {numeric: true});

// Clients in the order of a column: "own" upwards, "-own" downwards.
function sorted(list, columns, by) {
  const down = by[0] === "-", key = by.replace(/^-/, "");
  const of = columns.find((c) => c[0] === key)[2];
  const sought = new Map(list.map((k) => [k, of(k)]));
  return list.sort((a, b) => {
    const x = sought.get(a), y = sought.get(b);
    // Clients without a number come last either way.
    if (x === null || y === null) return (x === null) - (y === null) || a - b;
    const order = typeof x === "string" ? collator.compare(x, y) : x - y;
    return (down ? -order : order) || a - b;
  });
}

function csvCell(value) {
  if (value === null || value === undefined) return "";
  let text = String(value);
  // A spreadsheet takes a cell that begins with one of these for a formula.
  if (typeof value === "string" && /^[=+\-@']/.test(text)) text = "'" + text;
  return /[",\n\r]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
}

function csvOf(heads, columns) {
  const lines = data.ids.map((id, k) => columns.map((c) => csvCell(c[k])));
  return [heads.map(csvCell)].concat(lines).map((l) => l.join(",") + "\n")
    .join("");
}

function download(text, name) {
  const url = URL.createObjectURL(new Blob([text], {type: "text/csv"}));
  const link = add(document.body, "a", {href: url, download: name});
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
