"""Table 1 of the paper in symbols: its sizes, its rows and how sizes grow."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax

import fedinf_jax as fi
from fedinf_jax import influence
from fedinf_jax import tree
from fedinf_jax.linalg import low_rank

NUM_CLASSES = 5  # As LEAF's synthetic tasks have.
MAX_NAIVE = 1300  # Parameters of a layer: beyond, p³ takes too long.
PAPER, OURS = "both", "relu"  # Methods that the others are compared with.


class Sizes(NamedTuple):
  """The symbols of Table 1, at one point."""

  K: int  # clients; each is a removal
  B: int  # participants of a round
  D: int  # features
  m: int  # local steps
  N_s: int  # gradients uploaded per step
  n: int  # examples of a client

  @property
  def layers(self) -> tuple[int, int]:
    """p_j of kernel and bias."""
    return self.D * NUM_CLASSES, NUM_CLASSES

  @property
  def p(self) -> int:
    """Σ_j p_j."""
    return sum(self.layers)

  @property
  def p2(self) -> int:
    """Σ_j p_j², as matrices are kept layer by layer."""
    return sum(p**2 for p in self.layers)

  @property
  def p3(self) -> int:
    """Σ_j p_j³."""
    return sum(p**3 for p in self.layers)

  def described(self) -> dict:
    """Returns the sizes by the paper's symbols."""
    return {**self._asdict(), "p": self.p, "layers": self.layers}


# N_s stays below 64: from there on LAPACK's eigh, which relu calls, starts
# threads, and on busy cores they wait for each other.
BASE = Sizes(K=256, B=8, D=127, m=4, N_s=12, n=48)
LEAST = Sizes(K=8, B=2, D=3, m=2, N_s=2, n=8)
SETTING1 = Sizes(K=1000, B=10, D=60, m=5, N_s=50, n=50)


class Method(NamedTuple):
  """A row of Table 1."""

  title: str
  build: Callable[[Sizes], influence.Estimator]
  formulas: dict[str, str]  # the paper's: server, client, upload
  paper: Callable[[Sizes], dict]  # their values; K·B for K², Σ_j p_j² for p²
  operations: Callable[[Sizes], dict]  # of this code: server, client
  # Sizes that its programs depend on; along others they are the same.
  server_sizes: Callable[[Sizes], tuple] = lambda s: (s.K, s.B, s.D)
  client_sizes: Callable[[Sizes], tuple] = lambda s: (s.D, s.m, s.n)


def _values(server, client, upload=0):
  return {"server": server, "client": client, "upload": upload}


def _row_method(title, build, blocks, client):
  """Returns a method whose participants upload gradients.

  Args:
    title: what it is.
    build: makes the estimator.
    blocks: in which the server treats the parameters; 1: all together.
    client: Sizes → operations of a participant.
  """

  def server(s):
    rows, earlier = s.m * s.N_s, (s.m - 1) * s.N_s
    products = 4 * rows * s.p * s.K
    extra = 2 * earlier * (earlier * s.p + blocks * rows * s.K)
    sizes = [
      jax.ShapeDtypeStruct((s.B, s.m, s.N_s, p), float) for p in s.layers
    ]
    report = low_rank.Rows(sizes, None)
    layers = tree.layer_blocks(len(sizes), layerwise=blocks > 1)
    # Otherwise it is the recursion, without Gram matrices.
    if low_rank.is_compact(report, layers, s.K, whole=False):
      products += extra
    return s.B * products

  return Method(
    title=title,
    build=build,
    formulas=_values("K² m N_s p", "0", "m N_s p"),
    paper=lambda s: _values(s.K * s.B * s.m * s.N_s * s.p, 0, s.m * s.N_s),
    operations=lambda s: _values(server(s), client(s)),
    server_sizes=lambda s: (s.K, s.B, s.D, s.m, s.N_s),
    client_sizes=lambda s: (s.D, s.m, s.N_s, s.n),
  )


_WHOLE: dict[str, Any] = {
  "labels": "sampled",
  "layerwise": False,
  "spectrum": "relu",
}
METHODS = {
  "naive 1": Method(
    title="product of explicit Hessians",
    build=lambda _: fi.estimator(fi.dense_hessian(upload="product"), fi.lwet()),
    formulas=_values("K² p²", "m(n p² + p³)", "p²"),
    paper=lambda s: _values(
      s.K * s.B * s.p2, s.m * (s.n * s.p2 + s.p3), s.p2 / s.p
    ),
    operations=lambda s: _values(
      2 * s.K * s.B * s.p2, s.m * (4 * s.n * s.p2 + 2 * s.p3)
    ),
  ),
  "naive 2": Method(
    title="an explicit Hessian per step",
    build=lambda _: fi.estimator(fi.dense_hessian(upload="steps"), fi.lwet()),
    formulas=_values("K² m p²", "m n p²", "m p²"),
    paper=lambda s: _values(
      s.K * s.B * s.m * s.p2, s.m * s.n * s.p2, s.m * s.p2 / s.p
    ),
    operations=lambda s: _values(
      2 * s.K * s.B * s.m * s.p2, 4 * s.m * s.n * s.p2
    ),
    server_sizes=lambda s: (s.K, s.B, s.D, s.m),
  ),
  PAPER: _row_method(
    "the paper's method",
    lambda s: fi.estimator(fi.fisher(num_samples=s.N_s), fi.lwet()),
    blocks=2,
    client=lambda s: 4 * s.m * s.N_s * s.p,
  ),
  OURS: _row_method(
    "ours",
    lambda s: fi.estimator(
      fi.fisher(num_samples=s.N_s, **_WHOLE), fi.no_guard()
    ),
    blocks=1,
    client=lambda s: s.m * (4 * s.N_s * s.p * (1 + s.N_s) + 9 * s.N_s**3),
  ),
  "truncated": Method(
    title="no curvature at all",
    build=lambda _: fi.estimator(fi.truncated(), fi.no_guard()),
    formulas=_values("0", "0", "0"),
    paper=lambda s: _values(0, 0),
    operations=lambda s: _values(2 * s.K * s.B * s.p, 0),
  ),
}


def methods_at(sizes: Sizes) -> list[str]:
  """Returns the methods that are measured at such sizes."""
  large = max(sizes.layers) > MAX_NAIVE
  return [n for n in METHODS if not (large and n.startswith("naive"))]


class Sweep(NamedTuple):
  """One size grows while the others stay."""

  title: str
  size: Callable[[Sizes], int]  # the one that grows
  grow: Callable[[Sizes, float], Sizes]  # base sizes, factor
  factors: tuple[float, ...] = (0.5, 1, 2, 4)


def _everybody(base, factor):
  """All clients take part: B = K."""
  count = _times(factor, base.K / 8)
  # With so few gradients that the server's algorithm never changes.
  return base._replace(
    K=count, B=count, D=max(2, base.D // 2), N_s=max(1, base.N_s // 4)
  )


def _times(factor, size):
  return max(2, round(factor * size))


SWEEPS = {
  "K": Sweep(
    title="clients K",
    size=lambda s: s.K,
    grow=lambda s, f: s._replace(K=_times(f, s.K)),
  ),
  "B=K": Sweep(
    title="clients K = B",
    size=lambda s: s.K,
    grow=_everybody,
  ),
  "P": Sweep(
    title="parameters p",
    size=lambda s: s.p,
    grow=lambda s, f: s._replace(D=_times(f, s.D)),
    factors=(0.5, 1, 2, 4, 8),
  ),
  "m": Sweep(
    title="local steps m",
    size=lambda s: s.m,
    grow=lambda s, f: s._replace(m=_times(f, s.m)),
  ),
  "N_s": Sweep(
    title="gradients N_s",
    size=lambda s: s.N_s,
    grow=lambda s, f: s._replace(N_s=_times(f, s.N_s)),
  ),
}
FEW = (1, 2)  # The factors below half the scale, where compiling dominates.


def scaled(scale: float) -> Sizes:
  """Returns the base sizes, shrunk."""
  if not 0 < scale <= 1:
    raise ValueError(f"--scale={scale} must be above 0 and at most 1")
  shrink = lambda size, least: max(least, round(scale * size))
  base = Sizes(*map(shrink, BASE, LEAST))
  # The longest sweep of N_s must find its examples.
  return base._replace(n=int(max(SWEEPS["N_s"].factors)) * base.N_s)


def chosen(names: list[str], scale: float) -> list[str]:
  """Returns the sweeps to do, each once; all if none is named."""
  for name in names:
    if name not in SWEEPS:
      known = ", ".join(SWEEPS)
      raise ValueError(f"--sweeps: {name!r} is unknown; there are {known}")
  # B=K shares no program with the others: too slow for a quick look.
  usual = [name for name in SWEEPS if scale >= 0.5 or name != "B=K"]
  return list(dict.fromkeys(names)) or usual


def points_of(
  base: Sizes, sweeps: list[str], scale: float
) -> list[tuple[str, Sizes]]:
  """Returns (axis, sizes) of everything to measure."""
  points = [("base", base)]
  if scale == 1:
    points.append(("setting 1", SETTING1))
  for name in sweeps:
    sweep = SWEEPS[name]
    factors = sweep.factors if scale >= 0.5 else FEW
    points += [(name, sweep.grow(base, factor)) for factor in factors]
  return points
