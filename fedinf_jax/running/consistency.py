"""Do the files of a finished run belong together, and is each of them whole?"""

import pathlib

from fedinf_jax.running import records
from fedinf_jax.simulation import history as histories


def check(folder: pathlib.Path, found: dict):
  """Checks the files of a finished run against its summary.

  Args:
    folder: the workdir.
    found: name of a file → what `workdir.read` has parsed from it.

  Raises:
    ValueError: naming the file, and what it lacks.
  """
  for name, wrong in _wrongs(found):
    if wrong:
      raise ValueError(
        f"{folder} does not hold together: {name} {wrong}; its files may be cut"
        " short, of different runs or of another version. To start"
        " experiments.run on this workdir again mends what can be mended"
      )


def _wrongs(found):
  """Yields (file, what is wrong with it or None)."""
  for name in (*records.LOGS, records.CONFIG, records.INFLUENCE):
    yield name, None if name in found else "is missing"
  fed = found[records.CONFIG]["config"].get("fed", {})
  yield records.CONFIG, None if isinstance(fed, dict) else "lacks config.fed"
  summary, metrics = found[records.SUMMARY], found[records.METRICS]
  names, history = list(summary["estimators"]), found[records.HISTORY]
  rounds = _expected(found)
  yield records.METRICS, _rounds([line["round"] for line in metrics], rounds)
  yield records.HISTORY, _rounds([line["round"] for line in history], rounds)
  for line in metrics:
    yield records.METRICS, _lacks(line["estimators"], names)
  yield from _repeats(found, names, rounds)
  yield records.INFLUENCE, _influence(found, names)
  yield from _clients(found)
  for line in history:
    yield records.HISTORY, _history(line, history[0], names, summary["clients"])
  tracked = [n for n in names if summary["estimators"][n]["layers"]]
  for layers in found[records.LAYERS].values():
    yield records.LAYERS, _lacks(layers, summary["layer_names"])
    for traces in layers.values():
      yield records.LAYERS, _lacks(traces, tracked)
      for trace in traces.values():
        yield records.LAYERS, _rounds(trace["round"], rounds)
  if records.DEBUG in found:
    debug = found[records.DEBUG]
    wanted = ("nobody", "the bad ones", *debug["scores"])
    yield records.DEBUG, _lacks(debug["gain"], wanted)
    yield records.DEBUG, _rounds(debug["rounds"], rounds)
    for score in debug["scores"].values():
      if len(score["over_time"]) != len(rounds):
        yield records.DEBUG, f"has not {len(rounds)} rounds of every score"


def _expected(found):
  """Returns the evaluated rounds: of the recipe, else those of any log."""
  last = found[records.SUMMARY]["rounds"]
  lines = (*found[records.METRICS], *found[records.HISTORY])
  rounds = [line["round"] for line in lines]
  every = found[records.CONFIG]["config"].get("evaluate_every")
  if last in rounds and isinstance(every, int) and every > 0:
    return histories.evaluated(last, every)
  return sorted({*rounds, last})


def _influence(found, names):
  ids, columns = found[records.INFLUENCE]
  clients = found[records.SUMMARY]["clients"]
  if len(ids) != clients:
    return f"has {len(ids)} of {clients} clients"
  return _lacks(columns, records.influence_titles(["exact", *names])[1:])


def _clients(found):
  """Yields what is wrong with clients.json, which need not be there."""
  portraits = found.get(records.CLIENTS)
  if portraits is None:
    return
  clients = found[records.SUMMARY]["clients"]
  num_layers = len(portraits["layers"])
  columns = [portraits["drawn"], portraits["labels"]]
  for eps in portraits["eps"].values():
    columns += eps.values()
    if any(len(row) != num_layers for row in eps["norm"]):
      yield records.CLIENTS, f"has not {num_layers} layers everywhere"
    places = [k for row in eps["nearest"] for k in row]
    if any(not 0 <= k < clients for k in places):
      yield records.CLIENTS, "names a client that is not there"
    pairs = zip(eps["nearest"], eps["cosine"], strict=False)
    if any(len(near) != len(cosine) for near, cosine in pairs):
      yield records.CLIENTS, "lacks a cosine"
  if any(c is not None and len(c) != clients for c in columns):
    yield records.CLIENTS, f"has not {clients} clients"


def _repeats(found, names, rounds):
  """Yields what is wrong with the repeats of the exact replay, as `_wrongs`."""
  repeated = found[records.SUMMARY].get("reliability")
  if repeated is None:
    return
  lines = [line.get("reliability") for line in found[records.METRICS]]
  for part in (repeated["last"], repeated["last_quarter"]):
    yield records.SUMMARY, _lacks(part["estimators"], names)
  for line in lines:
    wrong = _lacks(line["estimators"], names) if line else "lacks reliability"
    yield records.METRICS, wrong
  yield records.REPEATS, None if records.REPEATS in found else "is missing"
  known = found[records.REPEATS]
  clients = found[records.SUMMARY]["clients"]
  for repeat in range(1, repeated["last"]["repeats"]):
    there = [r.round for r in known if r.repeat == repeat]
    yield records.REPEATS, _rounds(there, rounds)
  if {len(r.fil) for r in known} - {clients}:
    yield records.REPEATS, f"has not {clients} clients"


def _history(line, first, names, clients):
  wrong = _lacks(line["fil"], {*names, *first["fil"]})
  if wrong is None and {len(v) for v in line["fil"].values()} - {clients}:
    wrong = f"has not {clients} clients at round {line['round']}"
  return wrong


def _rounds(there, expected):
  """Says in words which round is missing, or should not be there."""
  if list(there) == expected:
    return None
  for round_ in expected:
    if round_ not in there:
      return f"lacks round {round_}"
  return "has a round twice, or one that was not evaluated"


def _lacks(there, wanted):
  return next((f"lacks {name}" for name in wanted if name not in there), None)
