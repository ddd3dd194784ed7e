// A card for every client: all that is known about it.
const card = $("card");

function openCard(k) {
  card.textContent = "";
  cardHead(k);
  const s = scoreOf(k), mine = values[s];
  add(card, "p", {class: "lead"}, cardSentence(k, s));
  cardFacts(k, s);
  if (card.open) $("card-title").focus();
  else card.showModal();
  const over = add(card, "section");
  add(over, "h3", {}, "Influence on the test loss over the rounds");
  const series = scores.map((score, i) => histories[i] &&
    {label: labelOf(score), score: score, values: histories[i].row(k)})
    .filter(Boolean);
  const low = mine.fil_low && mine.fil_low[k];
  const sure = typeof low === "number";
  const last = mine.fil[k];
  curves(add(over, "div"), data.kept, series, {
    zero: true, symlog: true,
    interval: sure ? {low: low, high: mine.fil_high[k]} : null,
    drawn: data.drawn && data.drawn[k],
    title: `Influence of client ${data.ids[k]} over the rounds; at the last` +
      ` ${signed(last)}, it ` + word(last),
  });
  add(over, "p", {class: "note"}, "Above 0 it helps." +
    (sure ? " The bar at the last round is the 95 % interval on other test" +
      " examples of the same kind." : "") +
    (data.drawn ? " The ticks below are the rounds in which it was drawn."
      : ""));
  cardScores(k);
  cardLayers(k, s);
  cardLabels(k);
  cardNearest(k, s);
  card.scrollTop = 0;
}

function cardHead(k) {
  const head = add(card, "div", {class: "card-head"});
  add(head, "h2", {id: "card-title", tabindex: "-1", autofocus: ""},
      "Client " + data.ids[k]);
  const order = data.ids.map((id, i) => i).sort((a, b) =>
    (values[scoreOf(b)].fil[b] ?? -Infinity) -
    (values[scoreOf(a)].fil[a] ?? -Infinity) || a - b);
  const place = order.indexOf(k);
  const buttons = add(head, "div", {class: "card-buttons"});
  [["Previous", place - 1], ["Next", place + 1]].forEach(([text, i]) => {
    const button = add(buttons, "button", {type: "button"}, text);
    button.disabled = !(i in order);
    button.onclick = () => { location.hash = linkTo(order[i]); };
  });
  const link = add(buttons, "button", {type: "button"}, "Copy link");
  link.onclick = () => copy(location.href, link);
  const close = add(buttons, "button", {type: "button", id: "card-close"},
                    "Close");
  close.onclick = () => card.close();
}

function cardSentence(k, s) {
  const mine = values[s], fil = mine.fil[k], fia = mine.fia && mine.fia[k];
  if (fil === null) return "Nothing is known about its influence.";
  if (data.times[k] === 0) return "It never took part, so it has no influence.";
  const moves = (v) => v > 0 ? "rise" : "fall";
  let text = fil ? `Without it the test loss would ${moves(fil)} by ` +
    digits(Math.abs(fil), 2) : "Without it the test loss would be the same";
  if (fia) {
    text += ` and the accuracy ${moves(fia)} by ` +
      `${digits(100 * Math.abs(fia), 2)} points`;
  }
  const effect = mine.effect[k];
  const says = {helps: "it helps", hurts: "it hurts",
                "cannot tell": "on other test examples one cannot tell"};
  if (effect) text += ": " + says[effect];
  const kind = scores[s].name === "exact" ? "exact" : "estimated";
  return `${text} (${kind}).`;
}

function cardFacts(k, s) {
  const list = add(card, "dl", {class: "facts"});
  const mine = values[s];
  const fact = (title, text) => {
    const pair = add(list, "div");
    add(pair, "dt", {}, title);
    add(pair, "dd", {}, text);
  };
  const some = (field) => mine[field] ? mine[field][k] : null;
  fact("training examples", data.examples[k].toLocaleString("en"));
  fact("drawn", data.times[k] === null ? "\u2013"
    : `in ${data.times[k]} of ${data.last} rounds`);
  if (data.lastDrawn[k]) fact("last drawn", "round " + data.lastDrawn[k]);
  fact("on its own test examples", signed(some("fil_own"), 2));
  fact("on everybody else's", signed(some("fil_others"), 2));
  fact("95 % interval", typeof some("fil_low") === "number"
    ? `${signed(some("fil_low"))} to ${signed(some("fil_high"))}` : "\u2013");
  if (typeof some("held") === "number") {
    fact("same sign in", Math.round(100 * some("held")) + " % of evaluations");
  }
  fact("by", labelOf(scores[s]));
}

function cardScores(k) {
  if (scores.length < 2) return;
  const part = add(card, "section");
  add(part, "h3", {}, "By every account");
  const table = add(add(part, "div", {class: "scroll"}), "table");
  const head = add(add(table, "thead"), "tr");
  ["by", "on the loss", "95 % interval", "on the accuracy", "effect"].forEach(
    (title) => add(head, "th", {scope: "col"}, title));
  const body = add(table, "tbody");
  scores.forEach((score, i) => {
    const v = values[i], row = add(body, "tr");
    add(row, "th", {scope: "row"}, labelOf(score));
    add(row, "td", {class: word(v.fil[k])}, signed(v.fil[k]));
    const low = v.fil_low && v.fil_low[k];
    add(row, "td", {}, typeof low === "number"
      ? `${signed(low)} to ${signed(v.fil_high[k])}` : "\u2013");
    const fia = v.fia[k];
    add(row, "td", {}, fia === null ? "\u2013"
      : signed(-100 * fia) + " points");
    add(row, "td", {}, v.effect[k] || (v.fil[k] === null ? "" :
      word(v.fil[k])));
  });
}

// Bars: [label, value, text, ghost], a ghost being what everybody has.
function bars(host, rows, title) {
  const list = add(host, "ul", {class: "bars", "aria-label": title});
  const most = Math.max(...rows.map((r) => Math.max(r[1], r[3] || 0))) || 1;
  rows.forEach(([label, value, text, ghost]) => {
    const item = add(list, "li");
    add(item, "span", {class: "bar-label", title: label}, label);
    const track = add(item, "span", {class: "track"});
    add(track, "span", {class: "bar", style: `width:${100 * value / most}%`});
    if (ghost !== undefined) {
      add(track, "span", {class: "ghost",
                          style: `left:${100 * ghost / most}%`});
    }
    add(item, "span", {class: "bar-value"}, text);
  });
}

function cardLayers(k, s) {
  const which = eps[s] ? s : eps.findIndex(Boolean);
  if (which < 0 || !data.layers) return;
  const norms = eps[which].norm.row(k);
  if (!norms.some((v) => v)) return;
  const part = add(card, "section");
  add(part, "h3", {}, "What it moves: size of the change of each layer, \u2016" +
    "\u03b5\u2016");
  bars(part, norms.map((v, j) => [data.layers[j], v || 0, digits(v, 2)]),
       "Size of the change of each layer");
  add(part, "p", {class: "note"}, "By " + labelOf(scores[which]) + ".");
}

function cardLabels(k) {
  if (!labels) return;
  const mine = labels.row(k).map(Math.round);
  const total = mine.reduce((a, b) => a + b, 0) || 1;
  const part = add(card, "section");
  add(part, "h3", {}, "Its labels");
  const shown = mine.map((v, j) => j).filter((j) => mine[j])
    .sort((a, b) => mine[b] - mine[a] || a - b);
  const some = shown.slice(0, 12);
  bars(part, some.map((j) => [String(j), mine[j] / total,
    `${mine[j].toLocaleString("en")} (${Math.round(100 * mine[j] / total)} %)`,
    everybody()[j]]), "How many examples of each label it has");
  add(part, "p", {class: "note"}, `${shown.length} of ${mine.length} labels` +
    (some.length < shown.length ? `, the ${some.length} most frequent shown`
      : "") + ". The mark is the label's share among all clients' examples.");
}

let shares = null;
function everybody() {
  if (!shares) {
    const sums = data.ids.map((id, k) => labels.row(k)).reduce((a, b) =>
      a.map((v, j) => v + b[j]));
    const total = sums.reduce((a, b) => a + b, 0) || 1;
    shares = sums.map((v) => v / total);
  }
  return shares;
}

function cardNearest(k, s) {
  const which = eps[s] ? s : eps.findIndex(Boolean);
  if (which < 0 || !eps[which].nearest[k].length) return;
  const part = add(card, "section");
  add(part, "h3", {}, "Clients that change the model most alike");
  const list = add(part, "ul", {class: "near"});
  eps[which].nearest[k].forEach((other, i) => {
    const item = add(list, "li");
    add(item, "a", {href: linkTo(other)}, data.ids[other]);
    const fil = values[scoreOf(other)].fil[other];
    item.append(` cosine ${eps[which].cosine[k][i].toFixed(2)}, influence ` +
                signed(fil));
  });
}

card.addEventListener("close", () => {
  tip(null, null);
  if (new URLSearchParams(location.hash.slice(1)).has("client")) {
    history.replaceState(null, "", "#" + tableView());
  }
});
// A click beside the card closes it.
card.onclick = (event) => { if (event.target === card) card.close(); };
