// The heat map: rounds across, clients down, the most helpful at the top. Names
// are links beside a canvas, so that the keyboard reaches every row.
const ROW = 17;
const MOST_ROWS = 400;

function heatMap() {
  const host = $("heat"), by = $("heat-by"), size = $("heat-rows");
  const there = scores.map((s, i) => [i, labelOf(s)])
    .filter(([i]) => histories[i]);
  if (!there.length || !histories[data.by]) {
    $("over-rounds").hidden = true;
    return;
  }
  options(by, there, data.by);
  const many = data.ids.length;
  const ends = [12, 30, 100].filter((n) => 2 * n < many)
    .map((n) => [n, `${n} at each end`]);
  if (many <= MOST_ROWS) ends.push([many, `all ${many}`]);
  options(size, ends, ends[0][0]);
  const names = add(host, "ol", {class: "names"});
  const side = add(host, "div", {class: "side"});
  const canvas = add(side, "canvas", {role: "img"});
  const band = add(side, "div", {class: "band", hidden: ""});
  let rows = [], columns = [], table = [];

  function choose() {
    const i = Number(by.value);
    // In a screening the exact numbers stand before the estimates.
    const of = (k) => i === data.by ? scoreOf(k) : i;
    const last = data.ids.map((id, k) => values[of(k)].fil[k]);
    const order = last.map((v, k) => k).filter((k) => last[k] !== null)
      .sort((a, b) => last[b] - last[a] || a - b);
    const n = Number(size.value);
    rows = order.length <= 2 * n ? order
      : order.slice(0, n).concat([null], order.slice(-n));
    table = rows.map((k) => k === null ? [] : histories[of(k)].row(k));
    columns = data.kept.map((r, j) => j).filter((j) =>
      table.some((row) => row.length && row[j] !== null));
    names.textContent = "";
    rows.forEach((k) => {
      const item = add(names, "li");
      if (k === null) {
        dress(item, {class: "gap"}, `${order.length - 2 * n} more`);
        return;
      }
      const link = add(item, "a", {href: linkTo(k), title: data.ids[k]},
                       data.ids[k]);
      item.dataset.k = k;
      link.onfocus = item.onpointerenter = () => mark(k);
      link.onblur = item.onpointerleave = () => mark(null);
    });
    const ends = [rows[0], rows[rows.length - 1]].map((k) => data.ids[k]);
    canvas.setAttribute("aria-label",
      `Heat map by ${labelOf(scores[i])}: ${plural(order.length, "client")}` +
      ` over rounds ${data.kept[0]} to ${data.kept[data.kept.length - 1]};` +
      ` helps most at the last round: ${ends[0]}, hurts most: ${ends[1]}.`);
    again();
  }

  function paint() {
    const width = side.clientWidth, height = rows.length * ROW + 22;
    if (!width) return;
    const dots = devicePixelRatio || 1;
    canvas.width = width * dots;
    canvas.height = height * dots;
    canvas.style.height = height + "px";
    const ink = canvas.getContext("2d");
    ink.scale(dots, dots);
    const paints = palette(table);
    const hatch = hatching(ink);
    rows.forEach((k, i) => {
      if (k === null) return;
      const first = firstRound(k);
      columns.forEach((j, c) => {
        const left = Math.round(c * width / columns.length);
        const right = Math.round((c + 1) * width / columns.length);
        const value = table[i][j];
        const absent = data.kept[j] < first;
        if (value === null && !absent) return;
        ink.fillStyle = absent ? hatch : paints(value);
        ink.fillRect(left, i * ROW, right - left, ROW - 1);
      });
    });
    ink.fillStyle = colour("--soft");
    ink.font = "11px system-ui, sans-serif";
    ink.textBaseline = "top";
    const step = Math.max(1, Math.ceil(columns.length * 48 / width));
    for (let c = columns.length - 1; c >= 0; c -= step) {
      const at = (c + 0.5) * width / columns.length;
      const text = data.kept[columns[c]].toLocaleString("en");
      const half = ink.measureText(text).width / 2;
      const x = Math.min(width - 2 * half, Math.max(0, at - half));
      ink.fillText(text, x, rows.length * ROW + 5);
    }
  }

  function under(event) {
    const room = canvas.getBoundingClientRect();
    const i = Math.floor((event.clientY - room.top) / ROW);
    const c = Math.floor((event.clientX - room.left) / room.width *
                         columns.length);
    const k = rows[i];
    return k === undefined || k === null ? null
      : {k: k, i: i, j: columns[Math.min(c, columns.length - 1)]};
  }

  const again = drawn(side, paint);
  canvas.onpointermove = (event) => {
    const at = under(event);
    mark(at && at.k);
    if (!at) return tip(null, null);
    const round = data.kept[at.j], value = table[at.i][at.j];
    const absent = round < firstRound(at.k);
    tip(event, ["client " + cut(data.ids[at.k], 40), absent
      ? `round ${round}: not drawn yet`
      : `round ${round}: ${signed(value)} (${word(value)})`]);
  };
  canvas.onpointerleave = () => { mark(null); tip(null, null); };
  canvas.onclick = (event) => {
    const at = under(event);
    if (at) location.hash = linkTo(at.k);
  };
  markers.push((k) => {
    const i = k === null ? -1 : rows.indexOf(k);
    band.hidden = i < 0;
    band.style.top = i * ROW - 1 + "px";
    band.style.height = ROW + 1 + "px";
  });
  by.onchange = size.onchange = choose;
  choose();
}

// Colours from hurts over nothing to helps; nearly logarithmic, and the
// strongest cells share one.
function palette(table) {
  const sizes = [].concat(...table).filter((v) => v).map(Math.abs)
    .sort((a, b) => a - b);
  const most = sizes[Math.floor(0.98 * (sizes.length - 1))] || 1;
  const middle = Math.min(most, sizes[sizes.length >> 1] || most);
  const stops = ["--heat-hurts", "--heat-hurts-mid", "--heat-zero",
                 "--heat-helps-mid", "--heat-helps"].map((name) =>
    colour(name).match(/\w\w/g).map((part) => parseInt(part, 16)));
  return (value) => {
    const u = Math.asinh(value / middle) / Math.asinh(most / middle);
    const place = 2 + 2 * Math.max(-1, Math.min(1, u));
    const i = Math.min(3, Math.floor(place)), share = place - i;
    const mix = stops[i].map((v, j) =>
      Math.round(v + share * (stops[i + 1][j] - v)));
    return `rgb(${mix.join(",")})`;
  };
}

function hatching(ink) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.strokeStyle = colour("--hatch");
  pen.lineWidth = 1;
  pen.beginPath();
  for (const x of [-6, 0, 6]) {
    pen.moveTo(x, 6);
    pen.lineTo(x + 6, 0);
  }
  pen.stroke();
  return ink.createPattern(tile, "repeat");
}
