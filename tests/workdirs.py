"""Writes a workdir like one of experiments.run, without training anything."""

import collections

import numpy as np

from fedinf_jax.running import records
from fedinf_jax.running import workdir
from fedinf_jax.simulation import history as histories
from fedinf_jax.simulation import portraits
from fedinf_jax.simulation import table as tables
from fedinf_jax.valuation import reliability

LAYERS = ("dense/kernel", "dense/bias")
# Noise of an estimate as a share of the spread of the truth.
NOISE = collections.defaultdict(
  lambda: 0.5, both=0.9, relu=0.03, truncated=4.0, naive=0.3
)
DESCRIPTIONS = {
  "both": "fisher(num_samples=50) + lwet()",
  "relu": "fisher(labels='sampled', layerwise=False, spectrum='relu')",
  "truncated": "truncated()",
  "naive": "exact_hessian() + no_guard()",
}
NUM_PARAMS = 305


def write(
  folder,
  *,
  clients=20,
  estimators=("both", "relu"),
  exact="all",
  rounds=100,
  layers=LAYERS,
  tracked=(0, 1),
  ids=None,
  blows_up="naive",
  stand_in=False,
  cleanse=False,
  debug=False,
  repeats=1,
):
  """Writes all files; `exact` is "all", "none" or a count, `tracked` who.

  `repeats` exact replays differ by noise of a third of the truth's size.
  """
  draw = np.random.default_rng(0)
  ids = list(ids or [f"f_{k:04d}" for k in range(clients)])
  replayed = {"all": clients, "none": 0}.get(exact)
  replayed = int(exact) if replayed is None else replayed
  at = [1, *range(5, rounds + 1, 5)]
  selected = draw.binomial(rounds, min(1, 10 / clients) * 0.4, clients)
  scores = _scores(draw, at, selected, estimators, blows_up)
  scores["exact"][:, replayed:] = np.nan
  measured = [
    {e: _agreement(scores[e][i], scores["exact"][i]) for e in estimators}
    for i in range(len(at))
  ]
  again = [_repeat(scores["exact"], i) for i in range(1, repeats)]
  reliabilities = [
    _reliability([scores["exact"][i], *(r[i] for r in again)], measured[i])
    for i in range(len(at))
  ]
  loss = [0.43 + 1.2 * float(np.exp(-t / rounds * 5)) for t in at]
  about = _about(rounds, estimators, exact, stand_in)
  workdir.claim(folder, about)
  layer_rows = _layers(
    draw,
    at,
    {ids[k]: k < replayed for k in tracked},
    layers,
    estimators,
    blows_up,
  )
  for i, t in enumerate(at):
    records.append_round(
      folder,
      records.Metrics(
        round=t,
        loss=loss[i],
        accuracy=1.1 - 0.55 * loss[i],
        estimators=measured[i],
        reliability=reliabilities[i],
      ),
      records.History(t, {e: v[i] for e, v in scores.items()}),
      [row for row in layer_rows if row.round == t],
    )
  table = _table(ids, selected, at, scores)
  records.write_influence(folder, table)
  records.write_clients(
    folder, _portraits(selected, at, layers, scores, replayed)
  )
  estimated = {
    e: _summary(e, [m[e] for m in measured], layers, blows_up)
    for e in estimators
  }
  if again:
    records.write_repeats(
      folder,
      [
        records.Repeat(i + 1, t, fil[j])
        for i, fil in enumerate(again)
        for j, t in enumerate(at)
      ],
    )
  _write_summary(
    folder, about, table, loss[-1], layers, estimated, reliabilities[-1]
  )
  if cleanse:
    records.write_cleanse(folder, _cleanse(draw, rounds, estimators[0]))
  if debug:
    records.write_debug(folder, _debug(draw, ids, estimators, at))
  return folder


def _portraits(selected, at, layers, scores, replayed):
  draw = np.random.default_rng(1)
  count = len(selected)
  known = {"exact": np.arange(count) < replayed}
  return portraits.Portraits(
    layers=list(layers),
    drawn=[
      sorted(draw.permutation(at[-1])[:n].tolist()) for n in selected.tolist()
    ],
    labels=draw.multinomial(40, [0.5, 0.3, 0.2, 0, 0], count).tolist(),
    eps={
      name: portraits.Eps(
        norm=[
          [1e-2 * (j + 1) if there else None for j in range(len(layers))]
          for there in known.get(name, [True] * count)
        ],
        nearest=[[(k + 1) % count] for k in range(count)],
        cosine=[[0.75]] * count,
      )
      for name in scores
      if name != "exact" or replayed
    },
  )


def _table(ids, selected, at, scores):
  sizes = 20 + 7 * np.arange(len(ids)) % 90
  last = np.minimum(at[-1], 2 * selected)
  columns = np.array(ids, object), sizes, selected, last
  spread = 2e-4
  measured = {
    e: tables.Measured(
      fil=fil[-1],
      fia=-fil[-1] / 3,
      own=20 * fil[-1],
      others=fil[-1] - 1e-5,
      low=fil[-1] - spread,
      high=fil[-1] + spread,
      p=np.exp(-np.abs(fil[-1]) / spread),
    )
    for e, fil in scores.items()
  }
  history = histories.History(np.array(at), scores, np.nan, np.nan)
  clients = dict(zip(tables.CLIENT, columns, strict=True))
  return tables.make(clients, measured, history)


def _write_summary(folder, about, table, loss, layers, estimators, found):
  repeated = found and records.Repeated(1e-5, found, found)
  records.write_summary(
    folder,
    records.Summary(
      name=about.name,
      source=about.data["source"],
      stand_in=about.data["stand_in"],
      clients=len(table),
      rounds=about.config["fed"]["rounds"],
      num_params=NUM_PARAMS,
      train_examples=19_357,
      test_examples=2_247,
      seed=0,
      loss=loss,
      accuracy=1.1 - 0.55 * loss,
      layer_names=list(layers),
      estimators=estimators,
      effects={name: table.counts(name) for name in table.names},
      data_digest=about.data["digest"],
      versions=about.versions,
      git_revision="4bf776f",
      reliability=repeated,
    ),
  )


def _about(rounds, estimators, exact, stand_in):
  return records.About(
    name="quickstart",
    config={
      "seed": 0,
      "fed": {"rounds": rounds, "cohort_size": 10, "learning_rate": 0.03},
      "estimators": ",".join(estimators),
      "exact": exact,
    },
    data={
      "source": "glyph writers"
      if stand_in
      else "LEAF synthetic data (made here)",
      "stand_in": stand_in,
      "digest": "c0ffee" * 8,
      "bad": [],
    },
    versions={"fedinf_jax": "0.1.0", "jax": "0.10.2", "numpy": "2.4.6"},
  )


def _scores(draw, at, selected, estimators, blows_up):
  """Returns FIL over rounds: name → [len(at), K]."""
  final = draw.standard_t(3, len(selected)) * 4e-4 * (selected > 0)
  final += 2e-4 * (selected > 0)
  # A client has no influence before it is first drawn.
  start = draw.integers(0, len(at), len(selected)) * 0.7
  ramp = np.clip(np.arange(len(at))[:, None] - start, 0, None)
  exact = final * ramp / np.maximum(ramp[-1], 1)
  scores = {"exact": exact}
  for name in estimators:
    noise = draw.normal(size=exact.shape[1]) * np.std(exact[-1])
    scores[name] = exact + NOISE[name] * noise * (ramp > 0) * (exact != 0)
    if name == blows_up:
      scores[name] = scores[name] + _growth(at)[:, None] * noise * (exact != 0)
  return scores


def _growth(at):
  t = np.asarray(at) / at[-1]
  return np.where(t > 0.4, np.exp((t - 0.4) * 45) - 1, 0)


def _repeat(exact, seed):
  draw = np.random.default_rng([1, seed])
  spread = np.nanstd(exact[-1]) if np.isfinite(exact).any() else 0.0
  return exact + 0.3 * spread * draw.normal(size=exact.shape) * (exact != 0)


def _reliability(exact, measured):
  if len(exact) == 1:
    return None
  found = reliability.reliability(*exact)
  return records.Reliability(
    repeats=len(exact),
    clients=int(np.isfinite(exact).all(0).sum()),
    **found._asdict(),
    estimators={
      name: records.WithMean(a.fil_pearson, a.fil_spearman)
      for name, a in measured.items()
    },
  )


def _agreement(estimate, exact):
  known = np.isfinite(exact)
  a, b = estimate[known], exact[known]
  found = records.Agreement(
    fil_pearson=None,
    fil_spearman=None,
    fia_pearson=None,
    fip_error=None,
    fip_relative_error=None,
    truncated_fraction=0.0,
  )
  if len(a) < 3 or not a.std() or not b.std():
    return found
  rank = lambda v: np.argsort(np.argsort(v))
  pearson = float(np.corrcoef(a, b)[0, 1])
  error = float(np.abs(a - b).mean() / np.abs(b).mean())
  return found._replace(
    fil_pearson=pearson,
    fil_spearman=float(np.corrcoef(rank(a), rank(b))[0, 1]),
    fia_pearson=pearson * 0.9,
    fip_error=error * 0.02,
    fip_relative_error=error,
  )


def _summary(name, measured, layers, blows_up):
  last = measured[-len(measured) // 4 :]

  def mean(field):
    values = [getattr(m, field) for m in last]
    values = [v for v in values if v is not None]
    return float(np.mean(values)) if values else None

  upload = 0.0 if name == "truncated" else 250.0
  truncated = 0.45 if name == "both" else 0.0
  growth = 38.5 if name == blows_up else 1.02 if name == "both" else 1.0
  return records.Estimator(
    description=DESCRIPTIONS.get(name, "lowrank_hessian(rank=50)"),
    upload_bytes_per_participant=int(upload * NUM_PARAMS * 4),
    upload_models=upload,
    interactive=name == "naive",
    simulated=False,
    **measured[-1]._replace(truncated_fraction=truncated)._asdict(),
    last_quarter={field: mean(field) for field in records.LAST_QUARTER},
    largest_growth=growth,
    nonfinite_fraction=0.0,
    layers={
      layer: records.LayerTrust(
        truncated_fraction=truncated,
        first_truncated_round=12 if truncated else None,
        largest_growth=growth,
      )
      for layer in layers
    },
  )


def _layers(draw, at, tracked, layers, estimators, blows_up):
  rows = []
  for client, has_exact in tracked.items():
    first = int(draw.integers(0, 4))
    for j, layer in enumerate(layers):
      size = 0.02 * (1 + np.sin(np.arange(len(at)) / 5 + j) * 0.4) / (j + 1)
      noise = {e: draw.lognormal(0, 0.15, len(at)) for e in estimators}
      for i, t in enumerate(at):
        norm = float(size[i]) * (i >= first)
        exact = records.Layer(
          round=t,
          client=client,
          layer=layer,
          estimator="exact",
          error=0.0,
          norm=norm,
        )
        if has_exact:
          rows.append(exact)
        for e in estimators:
          error = norm * NOISE[e] * 0.4 * float(noise[e][i])
          if e == blows_up and j == 0:
            error += norm * float(_growth(at)[i])
          rows.append(
            exact._replace(
              estimator=e,
              error=error if has_exact else None,
              norm=norm + error,
            )
          )
  return rows


def _cleanse(draw, rounds, estimator):
  """Removing harmful clients helps, helpful ones hurts, at random neither."""
  at = list(range(rounds, 2 * rounds + 1, rounds // 10))
  slope = {"harmful": -0.05, "helpful": 0.25, "random": 0.02, "none": 0.0}
  curves = []
  cases = [("none", "none", 0.0, 0)]
  for fraction in (0.05, 0.1, 0.2, 0.3, 0.5):
    for score in ("fil", "fia"):
      cases += [(score, end, fraction, 0) for end in ("harmful", "helpful")]
    cases += [("random", "random", fraction, r) for r in range(5)]
  for way, optimism in (("held_out", 1.0), ("one_set", 1.6)):
    for score, end, fraction, repeat in cases:
      shift = slope[end] * fraction * (optimism if end == "harmful" else 1)
      shift += draw.normal() * 0.01 * (end == "random")
      loss = [
        0.43 - 0.03 * (1 - np.exp(-3 * i / len(at))) + shift * i / len(at)
        for i in range(len(at))
      ]
      curves.append(
        records.Curve(
          way=way,
          score=score,
          end=end,
          fraction=fraction,
          repeat=repeat,
          removed=int(200 * fraction),
          rounds=at,
          loss=np.array(loss),
          accuracy=1.1 - 0.55 * np.array(loss),
        )
      )
  return records.Cleanse(
    round=rounds,
    estimator=estimator,
    validation_examples=1123,
    test_examples=1124,
    curves=curves,
  )


def _debug(draw, ids, estimators, at):
  scores = ["fil_exact", *(f"fil_{e}" for e in estimators), "update_norm"]
  return records.Debug(
    kind="flip_labels",
    bad=ids[: max(1, len(ids) // 10)],
    clients=len(ids),
    validation_examples=1123,
    test_examples=1124,
    rounds=at,
    scores={
      score: records.Detection(
        precision_at_k=max(0.05, 0.95 - 0.13 * i),
        auroc=0.99 - 0.09 * i,
        values=draw.normal(size=len(ids)),
        over_time=np.linspace(0.5, 0.99 - 0.09 * i, len(at)),
      )
      for i, score in enumerate(scores)
    },
    gain={
      who: records.Gain(loss=0.51 - 0.01 * i, accuracy=0.8 + 0.01 * i)
      for i, who in enumerate(("nobody", "the bad ones", *scores))
    },
  )
