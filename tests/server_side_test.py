"""Curvature from the server's own examples: laws, twins, and who sees what."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedinf_jax as fi
from fedinf_jax import federation
from fedinf_jax import rng
from fedinf_jax import simulation
from fedinf_jax.curvature import wall
from fedinf_jax.data import on_device
from tests import cases
from tests import jaxprs
from tests import reference_influence as twin

FED = fi.FedAvg(rounds=4, cohort_size=3, local_steps=2, learning_rate=0.4)
OURS = fi.fisher(
  num_samples=8, labels="sampled", layerwise=False, spectrum="relu", per="round"
)
GUARDS = {
  "none": fi.no_guard(),
  "lwet": fi.lwet(),
  "lwet_participant": fi.lwet(per="participant"),
}


def repeated_clients():
  """Clients with the same examples, some of them several times over."""
  x, y = cases.server_data(count=7)
  return fi.FederatedData.from_clients(
    [(np.tile(x, (n, 1)), np.tile(y, n)) for n in (1, 3, 2, 1, 4, 2)],
    num_classes=cases.CLASSES,
  ), (x, y)


CURVATURES = {
  "hessian": fi.exact_hessian(),
  "layerwise": fi.layerwise_hessian(),
  "dense": fi.dense_hessian(),
  "fisher": fi.fisher(),
  "difference": fi.exact_difference(),
  "fisher round": fi.fisher(per="round", spectrum="relu", layerwise=False),
}


@pytest.mark.parametrize(
  "guard",
  ["none", pytest.param("lwet_participant", marks=pytest.mark.slow)],
)
def test_equals_the_clients_own_where_all_hold_the_same(guard):
  data, own = repeated_clients()
  # Such clients are worth nothing, unless a cohort is left empty without them.
  fed = fi.FedAvg(rounds=8, cohort_size=1, local_steps=2, learning_rate=0.4)
  model, _ = cases.mlp()
  estimators = {}
  for name, c in CURVATURES.items():
    estimators[name] = fi.estimator(c, GUARDS[guard])
    served = fi.server_side(c, num_examples=7)
    estimators[f"server {name}"] = fi.estimator(served, GUARDS[guard])
  run = fi.simulate(model, data, fed, estimators=estimators, server_data=own)
  for name in CURVATURES:
    cases.close(run.eps[f"server {name}"], run.eps[name], rtol=0, atol=1e-9)
    assert np.abs(cases.ravel(run.eps[name])).max() > 1e-2


TWINS = {
  "hessian": (fi.exact_hessian(), twin.Curvature("exact")),
  "layerwise": (fi.layerwise_hessian(), twin.Curvature("layerwise")),
  "fisher": (fi.fisher(num_samples=20), twin.Curvature("fisher")),
  "dense": (fi.dense_hessian(), twin.Curvature("layerwise")),
}


@pytest.mark.parametrize(
  ("guard", "groups"),
  [
    ("none", False),
    ("lwet_participant", True),
    pytest.param("lwet", False, marks=pytest.mark.slow),
    pytest.param("lwet", True, marks=pytest.mark.slow),
    pytest.param("lwet_participant", False, marks=pytest.mark.slow),
  ],
)
def test_equals_its_literal_twin(guard, groups):
  model, data = cases.mlp()
  own = cases.server_data()
  fed = fi.FedAvg(rounds=5, cohort_size=3, local_steps=2, learning_rate=2.0)
  server = fi.FederatedData.from_clients([own], num_classes=cases.CLASSES)
  params = cases.in_double(model.init(jax.random.key(1)))
  cohorts = cases.COHORTS
  removals = cases.GROUPS if groups else np.eye(6, dtype=bool)
  run = fi.simulate(
    model,
    data,
    fed,
    estimators={
      name: fi.estimator(fi.server_side(c), GUARDS[guard])
      for name, (c, _) in TWINS.items()
    },
    removals=removals if groups else None,
    cohorts=cohorts,
    params=params,
    server_data=own,
  )
  for name, (_, literal) in TWINS.items():
    expected = twin.estimate(
      model, fed, data, params, cohorts, removals, 0, literal, guard, server
    )
    np.testing.assert_allclose(
      cases.ravel(run.eps[name]), expected.eps[-1], rtol=1e-8, atol=1e-8,
      err_msg=name,
    )  # fmt: skip
    np.testing.assert_array_equal(
      run.health[name].truncated_at, expected.truncated_at, err_msg=name
    )


@pytest.mark.slow
def test_m_equal_steps_at_once_are_the_power_of_one():
  setup, client = cases.one_client(cases.mlp, steps=3, eta=2.0)
  eye = jnp.eye(43)
  unravel = jax.flatten_util.ravel_pytree(client.start)[1]
  eye = jax.vmap(unravel)(eye)
  still = client._replace(
    iterates=jax.tree.map(lambda a: a[:1].repeat(3, 0), client.iterates)
  )
  for spectrum in (None, "relu", "exp"):
    for layerwise in (True, False):
      options = {"layerwise": layerwise, "spectrum": spectrum}
      steps, power = fi.fisher(**options), fi.fisher(**options, per="round")
      lost = [
        jax.jit(
          lambda c=c: c.lost(setup.descent, c.report(setup, still), eye)
        )()
        for c in (steps, power)
      ]
      cases.close(*lost, rtol=0, atol=1e-10)


# Who sees what.


def test_the_server_s_part_has_no_client_example_among_its_inputs():
  model, data = cases.logreg()
  own = cases.server_data(count=20)
  params = cases.in_double(model.init(jax.random.key(0)))
  ours = fi.estimator(fi.server_side(OURS, match=True), fi.no_guard())
  setup = federation.setup(model, FED, {"ours": ours}, params, 14)

  def serve(server, params, participants, draws):
    return ours.curvature.serve(setup, server, params, participants, draws)

  updates = wall.Participants(
    jax.tree.map(lambda a: jnp.ones((3, *a.shape)), params), jnp.ones(3, int)
  )
  draws = rng.server_draws(jax.random.key(0), jnp.int32(1))
  held = on_device.Held(*own, owner=None, removed_in=None)
  jaxpr = jax.make_jaxpr(serve)(held, params, updates, draws)
  sizes = {v.aval.shape for v in jaxpr.jaxpr.invars}
  assert (20, 4) in sizes and data.x.shape not in sizes
  constants = {np.shape(c) for c in jaxpr.consts}
  for equation in jaxprs.equations(jaxpr.jaxpr):
    constants |= {np.shape(v.val) for v in equation.invars if hasattr(v, "val")}
  assert not {s for s in constants if np.prod(s) > 64}  # Nothing folded in.


def test_other_data_with_the_same_updates_give_the_same_influence():
  """Least squares: a client's update depends on XᵀX and Xᵀy alone."""
  draw = np.random.default_rng(0)
  model = cases.regression()
  turn = lambda n: np.linalg.qr(draw.normal(size=(n, n)))[0]
  clients = [
    (draw.normal(size=(n, 4)), draw.normal(size=(n, 2))) for n in (6, 9, 7, 8)
  ]
  # A model without a bias: rotating a client's examples changes no gradient.
  model = model._replace(
    init=lambda key: {"w": jax.random.normal(key, (4, 2))},
    apply=lambda params, x: x @ params["w"],
  )
  rotated = []
  for x, y in clients:
    q = turn(len(x))
    rotated.append((q @ x, q @ y))
  own = draw.normal(size=(12, 4)), draw.normal(size=(12, 2))
  fed = fi.FedAvg(rounds=5, cohort_size=2, local_steps=2, learning_rate=0.02)
  estimators = {
    "one": fi.estimator(fi.server_side(fi.fisher(num_samples=9)), fi.lwet()),
    "matched": fi.estimator(
      fi.server_side(fi.fisher(num_samples=9, per="round"), match=True),
      fi.no_guard(),
    ),
    "uploads": fi.estimator(fi.fisher(num_samples=4), fi.no_guard()),
  }
  runs = [
    fi.simulate(
      model,
      fi.FederatedData.from_clients(part),
      fed,
      estimators=estimators,
      server_data=own,
    )
    for part in (clients, rotated)
  ]
  for name in ("one", "matched"):
    cases.close(runs[0].eps[name], runs[1].eps[name], rtol=0, atol=1e-12)
  off = cases.ravel(runs[0].eps["uploads"]) - cases.ravel(
    runs[1].eps["uploads"]
  )
  assert np.abs(off).max() > 1e-6


SERVED = {
  "ours": fi.estimator(fi.server_side(OURS), fi.no_guard()),
  "matched": fi.estimator(fi.server_side(OURS, match=True), fi.lwet()),
  "fine": fi.estimator(
    fi.server_side(OURS, match=True), fi.lwet(per="participant")
  ),
  "hessian": fi.estimator(fi.server_side(fi.exact_hessian()), fi.lwet()),
}


def test_nothing_is_uploaded():
  model, data = cases.logreg()
  for e in SERVED.values():
    assert fi.upload_bytes(model, data, FED, e) == 0


def test_distributed_and_stepwise_it_is_the_same():
  model, data = cases.mlp()
  # Some of the examples are clients' own; their rows lie on several devices.
  x, y = cases.server_data()
  own = {data.ids[1]: (x[:6], y[:6]), data.ids[4]: (x[6:9], y[6:9])}
  own = fi.FederatedData.from_clients({**own, "other": (x[9:], y[9:])})
  estimators = {"served " + n: SERVED[n] for n in ("ours", "matched")}
  options = {"estimators": estimators, "server_data": own}
  run = fi.simulate(model, data, FED, **options)
  mesh = jax.sharding.Mesh(
    np.array(jax.devices()[:4]).reshape(2, 2), ("removals", "params")
  )
  split = fi.simulate(model, data, FED, mesh=mesh, **options)
  init, step = fi.simulator(model, data, FED, **options)
  state = init()
  for _ in range(FED.rounds):
    state = step(state)
  again = fi.Run.of(model, state)
  for name in estimators:
    cases.close(split.eps[name], run.eps[name], rtol=0, atol=1e-10)
    cases.close(again.eps[name], run.eps[name], rtol=0, atol=0)
  np.testing.assert_allclose(
    split.health["served matched"].residual,
    run.health["served matched"].residual,
    rtol=1e-9,
  )


def test_each_round_draws_afresh_and_the_examples_are_no_constant(compilations):
  model, data = cases.logreg()
  estimators = {"ours": SERVED["ours"]}
  runs = []
  for seed in (8, 9):
    init, step = fi.simulator(
      model,
      data,
      FED,
      estimators=estimators,
      server_data=cases.server_data(seed=seed),
    )
    state = step(init())
    before = len(compilations)
    state = step(state, 3)
    runs.append(fi.Run.of(model, state))
  assert len(compilations) == before  # Other examples, the same program.
  first, second = (cases.ravel(run.eps["ours"]) for run in runs)
  assert np.abs(first - second).max() > 1e-6
  keys = [
    rng.server_draws(jax.random.key(0), jnp.int32(t)).key(
      rng.Stream.SERVER, jnp.int32(0)
    )
    for t in (1, 2)
  ]
  chosen = [np.asarray(rng.choose(k, 20, size=8, limit=20)[0]) for k in keys]
  assert set(chosen[0]) != set(chosen[1])


def test_momentum_and_mini_batches():
  model, data = cases.mlp()
  fed = fi.FedAvg(
    rounds=3, cohort_size=3, local_steps=2, batch_size=4,
    client_optimizer=optax.sgd(0.2, momentum=0.8),
  )  # fmt: skip
  estimators = {
    "fisher": fi.estimator(fi.server_side(fi.fisher(num_samples=9)), fi.lwet()),
    "hessian": fi.estimator(fi.server_side(fi.exact_hessian()), fi.no_guard()),
  }
  run = fi.simulate(
    model, data, fed, estimators=estimators, server_data=cases.server_data(),
    exact=True,
  )  # fmt: skip
  exact = cases.ravel(run.exact_eps)
  for name in estimators:
    off = np.linalg.norm(cases.ravel(run.eps[name]) - exact)
    assert off < np.linalg.norm(exact)


X, Y = cases.server_data()
BAD = {
  "missing": ({}, "'ours' is server_side and needs server_data"),
  "shape": ({"server_data": (X[:, :3], Y)}, r"examples of shape \[3\]"),
  "kind": ({"server_data": (X, Y + 0.5)}, "server_data .*: y has examples of"),
  "inputs": ({"server_data": (np.ones((20, 4), int), Y)}, r"\[4\], int64"),
  "label": ({"server_data": (X, Y + 5)}, "y has a label outside 0 … 2"),
  "nan": ({"server_data": (X * np.nan, Y)}, "not finite"),
  "few": ({"server_data": (X[:5], Y[:5])}, "has 5 examples; 'ours' draws 8"),
  "no pair": ({"server_data": X}, r"must be a pair \(x, y\)"),
  "unused": (
    {"server_data": (X, Y), "estimators": {"paper": cases.FISHER}},
    "no estimator is server_side",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_server_data_is_named_before_anything_compiles(name, compilations):
  options, message = BAD[name]
  model, data = cases.logreg()
  options = {"estimators": {"ours": SERVED["ours"]}, **options}
  before = len(compilations)
  with pytest.raises(ValueError, match=message):
    simulation.simulator(model, data, FED, **options)
  assert len(compilations) == before


def test_what_server_side_takes():
  with pytest.raises(ValueError, match="curvature is 3; it must be one of"):
    fi.server_side(3)
  with pytest.raises(ValueError, match="it must be one of participants"):
    fi.server_side(fi.server_side(OURS))
  with pytest.raises(ValueError, match="num_examples is 0"):
    fi.server_side(OURS, num_examples=0)
  with pytest.raises(ValueError, match="match is 1; it must be True or False"):
    fi.server_side(OURS, match=1)
  for c in (fi.fisher(), fi.exact_hessian(), fi.fisher(per="round", rank=2)):
    with pytest.raises(ValueError, match="match=True needs fisher"):
      fi.server_side(c, match=True)
