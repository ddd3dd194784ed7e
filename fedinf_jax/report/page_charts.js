// Curves and dots, as SVG.

// Values to [0, 1]; nearly logarithmic on both sides of zero where a few values
// dwarf the rest.
function scale(list, options) {
  const known = list.filter((v) => v !== null && isFinite(v));
  let low = Math.min(...known), high = Math.max(...known);
  if (!known.length) low = high = 0;
  if (options.zero) { low = Math.min(low, 0); high = Math.max(high, 0); }
  if (options.limits) [low, high] = options.limits(low, high);
  if (low === high) { low -= 1; high += 1; }
  const sizes = known.map(Math.abs).filter((v) => v > 0).sort((a, b) => a - b);
  const middle = sizes[sizes.length >> 1] || 1;
  const most = sizes[sizes.length - 1] || 1;
  const dwarfed = options.symlog && most > 30 * middle;
  const bend = dwarfed ? (v) => Math.asinh(v / middle) : (v) => v;
  const unbend = dwarfed ? (u) => Math.sinh(u) * middle : (u) => u;
  const a = bend(low), b = bend(high), pad = 0.06 * (b - a);
  const start = a - pad, span = b - a + 2 * pad;
  const at = (v) => (bend(v) - start) / span;
  return {
    at: (v) => Math.min(1.02, Math.max(-0.02, at(v))),
    ticks: dwarfed ? powers(unbend(start), unbend(start + span), middle)
      : steps(start, start + span, options.ticks || 5),
    dwarfed: dwarfed,
  };
}

function steps(low, high, count) {
  const rough = (high - low) / count;
  const unit = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = unit * [1, 2, 5, 10].find((s) => s * unit >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) {
    found.push(Number((i * step).toPrecision(12)));
  }
  return found;
}

function powers(low, high, middle) {
  const most = Math.floor(Math.log10(Math.max(-low, high)));
  const least = Math.ceil(Math.log10(middle));
  const found = [0];
  const stride = Math.max(1, Math.ceil((most - least + 1) / 3));
  for (let p = most; p >= least; p -= stride) {
    const v = Math.pow(10, p);
    if (v <= high) found.push(v);
    if (-v >= low) found.push(-v);
  }
  return found;
}

function tickText(value) {
  return value ? digits(value, 3).replace(/(\.\d*?)0+$/, "$1")
    .replace(/\.$/, "") : "0";
}

const stroke = (score) => score.colour < 0 ? "var(--truth)"
  : "var(--c" + score.colour % COLOURS + ")";
const dash = (score) => score.colour < 0 ? "5 3"
  : ["", "6 3", "2 3"][Math.min(2, Math.floor(score.colour / COLOURS))];

function frame(host, width, height, box, title) {
  host.textContent = "";
  const svg = draw(host, "svg", {
    width: width, height: height, viewBox: `0 0 ${width} ${height}`,
    role: "img", "aria-label": title,
  });
  draw(svg, "rect", {x: box.left, y: box.top, width: box.width,
                     height: box.height, class: "plot"});
  return svg;
}

function axes(svg, box, x, y) {
  x.ticks.forEach((v) => {
    const at = box.left + box.width * x.at(v);
    draw(svg, "line", {x1: at, x2: at, y1: box.top,
                       y2: box.top + box.height, class: "grid"});
    draw(svg, "text", {x: at, y: box.top + box.height + 15,
                       "text-anchor": "middle"}, tickText(v));
  });
  y.ticks.forEach((v) => {
    const at = box.top + box.height * (1 - y.at(v));
    draw(svg, "line", {x1: box.left, x2: box.left + box.width, y1: at,
                       y2: at, class: v ? "grid" : "grid zero"});
    draw(svg, "text", {x: box.left - 6, y: at + 4, "text-anchor": "end"},
         tickText(v));
  });
}

// Lines over rounds. series: {label, score, values}; options: zero, limits,
// symlog, interval {at, low, high}, drawn (rounds), title.
function curves(host, rounds, series, options) {
  series = series.filter((s) => s.values.some((v) => v !== null));
  drawn(host, (width) => {
    const keys = series.length > 1 ? series.length : 0;
    const box = {left: 58, top: 8, width: width - 70, height: 190};
    const below = 22 + (options.drawn ? 16 : 0);
    const svg = frame(host, width, box.top + box.height + below, box,
                      options.title);
    const interval = options.interval;
    const all = [].concat(...series.map((s) => s.values));
    if (interval) {
      // A wide interval leaves the chart rather than flatten the curves.
      const most = 3 * Math.max(...all.map(Math.abs));
      all.push(Math.max(interval.low, -most), Math.min(interval.high, most));
    }
    const y = scale(all, options);
    const x = scale(rounds, {limits: (low, high) => [low, high],
                             ticks: width > 500 ? 6 : 4});
    axes(svg, box, x, y);
    const px = (v) => box.left + box.width * x.at(v);
    const py = (v) => box.top + box.height * (1 - y.at(v));
    series.forEach((s) => curve(svg, rounds, s, px, py));
    if (interval) {
      const at = px(rounds[rounds.length - 1]);
      draw(svg, "path", {
        d: `M${at - 4} ${py(interval.low)}h8M${at} ${py(interval.low)}` +
          `V${py(interval.high)}M${at - 4} ${py(interval.high)}h8`,
        class: "interval"});
    }
    (options.drawn || []).forEach((r) => draw(svg, "line", {
      x1: px(r), x2: px(r), y1: box.top + box.height + 22,
      y2: box.top + box.height + 32, class: "tick"}));
    hover(svg, box, rounds, series, px);
    if (keys) key(host, series);
  });
}

function curve(svg, rounds, s, px, py) {
  const there = rounds.map((r, i) => [r, s.values[i]])
    .filter((p) => p[1] !== null);
  const d = there.map((p, i) => (i ? "L" : "M") + px(p[0]).toFixed(1) +
    " " + py(p[1]).toFixed(1)).join("");
  const style = `stroke:${stroke(s.score)};stroke-dasharray:` +
    `${dash(s.score) || "none"}`;
  draw(svg, "path", {d: d, class: "line", style: style});
  // Of few points it shows where they are.
  if (there.length >= 15) return;
  there.forEach((p) => draw(svg, "circle", {
    cx: px(p[0]), cy: py(p[1]), r: 2.2, style: `fill:${stroke(s.score)}`}));
}

function hover(svg, box, rounds, series, px) {
  const rule = draw(svg, "line", {y1: box.top, y2: box.top + box.height,
                                  class: "rule", visibility: "hidden"});
  svg.onpointermove = (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    let best = 0;
    rounds.forEach((r, i) => {
      if (Math.abs(px(r) - at) < Math.abs(px(rounds[best]) - at)) best = i;
    });
    dress(rule, {x1: px(rounds[best]), x2: px(rounds[best]),
                 visibility: "visible"});
    tip(event, ["round " + rounds[best].toLocaleString("en")].concat(
      series.map((s) => s.label + ": " + digits(s.values[best], 3))));
  };
  svg.onpointerleave = () => {
    rule.setAttribute("visibility", "hidden");
    tip(null, null);
  };
}

function key(host, series) {
  const list = add(host, "ul", {class: "key"});
  series.forEach((s) => {
    const item = add(list, "li");
    const line = draw(draw(item, "svg", {width: 26, height: 8,
                                         "aria-hidden": "true"}),
                      "line", {x1: 0, x2: 26, y1: 4, y2: 4, class: "line"});
    line.style.stroke = stroke(s.score);
    line.style.strokeDasharray = dash(s.score) || "none";
    item.append(" " + s.label);
  });
}

// Two scores of every client against each other.
function scatter() {
  const host = $("scatter"), xs = $("scatter-x"), ys = $("scatter-y");
  const other = scores.findIndex((s, i) => i && i !== data.by);
  const first = data.by > 0 ? data.by : Math.max(1, other);
  options(xs, scoreOptions(), 0);
  options(ys, scoreOptions(), Math.min(first, scores.length - 1));
  const best = scores.reduce((a, s, i) => {
    const r = (data.curves.pearson[s.name] || []).slice(-1)[0];
    return r > a[0] ? [r, i] : a;
  }, [-2, -1])[1];
  if (best > 0) ys.value = best;
  let dots = [], last = null;
  const again = drawn(host, (width) => {
    const side = Math.min(width, 440);
    const a = values[xs.value].fil, b = values[ys.value].fil;
    const box = {left: 58, top: 8, width: side - 66, height: side - 90};
    const both = a.map((v, k) => k).filter((k) =>
      a[k] !== null && b[k] !== null);
    const title = `${plural(both.length, "client")}: influence by ` +
      `${labelOf(scores[ys.value])} against ${labelOf(scores[xs.value])}`;
    const svg = frame(host, side, side - 40, box, title);
    const list = both.map((k) => a[k]);
    // One scale for both, made from the one across.
    const one = scale(list.length ? list : [0], {zero: true, symlog: true});
    axes(svg, box, one, one);
    const px = (v) => box.left + box.width * one.at(v);
    const py = (v) => box.top + box.height * (1 - one.at(v));
    draw(svg, "line", {x1: box.left, y1: box.top + box.height,
                       x2: box.left + box.width, y2: box.top,
                       class: "diagonal"});
    dots = [];
    both.forEach((k) => {
      const dot = draw(svg, "circle", {
        cx: px(a[k]).toFixed(1), cy: py(b[k]).toFixed(1), r: 3.4,
        class: "dot " + word(a[k])});
      dot.dataset.k = k;
      dots[k] = dot;
    });
    nameDots(svg, box, both, (k) => [px(a[k]), py(b[k])]);
    draw(svg, "text", {x: box.left + box.width / 2, y: side - 46,
                       "text-anchor": "middle", class: "axis"},
         scores[xs.value].words + (one.dwarfed ? " (nearly log scale)" : ""));
    svg.onpointermove = (event) => {
      const k = event.target.dataset.k;
      mark(k === undefined ? null : Number(k));
      tip(event, k === undefined ? null : [
        "client " + cut(data.ids[k], 40),
        scores[xs.value].words + ": " + signed(a[k], 3),
        scores[ys.value].words + ": " + signed(b[k], 3)]);
    };
    svg.onpointerleave = () => { mark(null); tip(null, null); };
    svg.onclick = (event) => {
      const k = event.target.dataset.k;
      if (k !== undefined) location.hash = linkTo(k);
    };
  });
  xs.onchange = ys.onchange = again;
  markers.push((k) => {
    if (last) last.classList.remove("marked");
    last = dots[k] || null;
    if (last) last.classList.add("marked");
  });
}

// Names the clients of the verdict, as far as there is room for names.
function nameDots(svg, box, there, place) {
  const named = new Set(data.named.helps.concat(data.named.hurts));
  const taken = [];
  there.filter((k) => named.has(k)).forEach((k) => {
    const [x, y] = place(k);
    const room = ([u, v]) => Math.abs(u - x) > 60 || Math.abs(v - y) > 12;
    if (!taken.every(room)) return;
    taken.push([x, y]);
    const right = x > box.left + box.width * 0.7;
    draw(svg, "text", {x: x + (right ? -6 : 6), y: y - 5, class: "name",
                       "text-anchor": right ? "end" : "start"},
         cut(data.ids[k], 12));
  });
}

function overview() {
  const truth = {colour: -1};
  ["loss", "accuracy"].forEach((field) => {
    const list = data.curves[field];
    const last = digits(list[list.length - 1], 4);
    curves($(field), data.rounds, [{label: field, score: {colour: 0},
                                    values: list}],
           {title: `Test ${field} over the rounds, ${last} at the last`});
  });
  const found = scores.filter((s) => data.curves.pearson[s.name])
    .map((s) => ({label: labelOf(s), score: s,
                  values: data.curves.pearson[s.name]}));
  if (data.curves.ceiling.length === data.rounds.length) {
    found.push({label: "ceiling: how reproducible retraining is",
                score: truth, values: data.curves.ceiling});
  }
  $("agreement-figure").hidden = !found.length;
  if (found.length) {
    curves($("agreement"), data.rounds, found, {
      limits: (low) => [Math.min(0, low), 1],
      title: "Agreement with retraining over the rounds; at the last: " +
        found.map((s) => s.label + " " +
          digits(s.values[s.values.length - 1], 3)).join(", "),
    });
  }
  if (data.debug) {
    const list = data.debug.scores.map((s) => ({label: s.words, score: s,
                                                values: s.auroc}));
    curves($("detection"), data.debug.rounds, list, {
      limits: (low) => [Math.min(0.5, low), 1],
      title: "AUROC of each score over the rounds; at the last: " +
        list.map((s) => s.label + " " +
          digits(s.values[s.values.length - 1], 3)).join(", "),
    });
  }
  const scattered = scores.length > 1;
  $("scatter").closest("figure").hidden = !scattered;
  if (scattered) scatter();
}
