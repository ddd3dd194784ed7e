"""Table 1 of the paper in symbols: its sizes, its rows and how sizes grow."""

from collections.abc import Callable
from typing import NamedTuple

from experiments import estimators as named
import fedinf_jax as fi
from fedinf_jax import influence
from fedinf_jax import propagation

NUM_CLASSES = 5  # As LEAF's synthetic tasks have.
MAX_NAIVE = 1300  # Parameters of a layer: beyond, p³ takes too long.


class Sizes(NamedTuple):
  """The symbols of Table 1, at one point."""

  K: int  # clients; each is a removal
  B: int  # participants of a round
  D: int  # features
  m: int  # local steps
  N_s: int  # gradients a step uploads
  n: int  # examples of a client

  # p_j of kernel and bias; Σ_j of powers, as matrices are kept layer by layer.
  layers = property(lambda s: (s.D * NUM_CLASSES, NUM_CLASSES))
  p = property(lambda s: sum(s.layers))
  p2 = property(lambda s: sum(p**2 for p in s.layers))
  p3 = property(lambda s: sum(p**3 for p in s.layers))

  def described(self) -> dict:
    """Returns the sizes by the paper's symbols."""
    return {**self._asdict(), "p": self.p, "layers": self.layers}


# N_s stays below 64: from there on LAPACK's eigh, which relu calls, starts
# threads, and on busy cores they wait for each other.
BASE = Sizes(K=256, B=8, D=127, m=4, N_s=12, n=48)
LEAST = Sizes(K=8, B=2, D=3, m=2, N_s=2, n=8)
SETTING1 = Sizes(K=1000, B=10, D=60, m=5, N_s=50, n=50)


class Method(NamedTuple):
  """A row of Table 1: formulas (server, client, upload) and their values."""

  build: Callable[[Sizes], influence.Estimator]
  paper: tuple[str, ...]
  paper_values: Callable[[Sizes], tuple]  # K·B for K², Σ_j p_j² for p²
  built: tuple[str, ...]  # operations of this code
  built_values: Callable[[Sizes], tuple]
  # Sizes that its programs depend on; along others they are the same.
  server_sees: tuple[str, ...] = ("K", "B", "D")
  client_sees: tuple[str, ...] = ("D", "m", "n")

  def texts(self) -> dict:
    """Returns source -> side -> formula."""
    return {"paper": _by_side(self.paper), "built": _by_side(self.built)}

  def values(self, sizes: Sizes) -> dict:
    """Returns source -> side -> what the formula comes to."""
    paper, built = self.paper_values(sizes), self.built_values(sizes)
    return {"paper": _by_side(paper), "built": _by_side(built)}


def _by_side(formulas):
  # Uploads, in models, are as the paper has them.
  return dict(zip(("server", "client", "upload"), formulas, strict=False))


def _estimator(name, **own):
  """Builds an estimator that recipes name, with options of its own."""
  (function, arguments), (guard, options) = named.SPECS[name]
  curvature = getattr(fi, function)(**arguments, **own)
  return fi.estimator(curvature, getattr(fi, guard)(**options))


def _rows(name, built, blocks, client):
  """A method whose participants upload gradients."""

  def built_values(s):
    rows, earlier = s.m * s.N_s, (s.m - 1) * s.N_s
    products = 4 * rows * s.p * s.K
    extra = 2 * earlier * (earlier * s.p + blocks * rows * s.K)
    # As `propagation.is_compact` says; otherwise the recursion, without them.
    if products + extra <= propagation.SKINNY * products:
      products += extra
    return s.B * products, client(s)

  return Method(
    lambda s: _estimator(name, num_samples=s.N_s),
    ("K² m N_s p", "0", "m N_s p"),
    lambda s: (s.K * s.B * s.m * s.N_s * s.p, 0, s.m * s.N_s),
    built,
    built_values,
    ("K", "B", "D", "m", "N_s"),
    ("D", "m", "N_s", "n"),
  )


METHODS = {
  "naive 1": Method(
    lambda _: fi.estimator(fi.dense_hessian(upload="product"), fi.lwet()),
    ("K² p²", "m(n p² + p³)", "p²"),
    lambda s: (s.K * s.B * s.p2, s.m * (s.n * s.p2 + s.p3), s.p2 / s.p),
    ("2 K B p²", "m(4 n p² + 2 p³)"),
    lambda s: (2 * s.K * s.B * s.p2, s.m * (4 * s.n * s.p2 + 2 * s.p3)),
  ),
  "naive 2": Method(
    lambda _: fi.estimator(fi.dense_hessian(upload="steps"), fi.lwet()),
    ("K² m p²", "m n p²", "m p²"),
    lambda s: (s.K * s.B * s.m * s.p2, s.m * s.n * s.p2, s.m * s.p2 / s.p),
    ("2 K B m p²", "4 m n p²"),
    lambda s: (2 * s.K * s.B * s.m * s.p2, 4 * s.m * s.n * s.p2),
    ("K", "B", "D", "m"),
  ),
  "both": _rows(
    "both",
    ("B(4 K m N_s p + 2 (m−1) N_s² ((m−1) p + 2 m K))", "4 m N_s p"),
    2,
    lambda s: 4 * s.m * s.N_s * s.p,
  ),
  "relu": _rows(
    "relu",
    (
      "B(4 K m N_s p + 2 (m−1) N_s² ((m−1) p + m K))",
      "m(4 N_s p + 4 N_s² p + 9 N_s³)",
    ),
    1,
    lambda s: s.m * (4 * s.N_s * s.p * (1 + s.N_s) + 9 * s.N_s**3),
  ),
  "truncated": Method(
    lambda _: _estimator("truncated"),
    ("0", "0", "0"),
    lambda s: (0, 0, 0),
    ("2 K B p", "0"),
    lambda s: (2 * s.K * s.B * s.p, 0),
  ),
}


def methods_at(sizes: Sizes) -> list[str]:
  """Returns the methods that are measured at such sizes."""
  large = max(sizes.layers) > MAX_NAIVE
  return [n for n in METHODS if not (large and n.startswith("naive"))]


# By which factors a size grows while the others stay.
SWEEPS = dict.fromkeys(("K", "B=K", "P", "m", "N_s"), (0.5, 1, 2, 4))
SWEEPS["P"] += (8,)
FEW = (1, 2)  # The factors below half the scale, where compiling dominates.


def grown(base: Sizes, axis: str, factor: float) -> Sizes:
  """Returns the sizes with one of them grown."""
  if axis == "B=K":
    # With so few gradients that the server's algorithm never changes.
    K, D, N_s = round(factor * base.K / 8), base.D // 2, base.N_s // 4
    return base._replace(K=max(2, K), B=max(2, K), D=max(2, D), N_s=max(1, N_s))
  symbol = "D" if axis == "P" else axis
  size = max(1, round(factor * getattr(base, symbol)))
  return base._replace(**{symbol: size})


def scaled(scale: float) -> Sizes:
  """Returns the base sizes, shrunk."""
  if not 0 < scale <= 1:
    raise ValueError(f"--scale={scale} must be above 0 and at most 1")
  shrink = lambda size, least: max(least, round(scale * size))
  base = Sizes(*map(shrink, BASE, LEAST))
  # The longest sweep of N_s must find its examples.
  return base._replace(n=max(SWEEPS["N_s"]) * base.N_s)


def chosen(names: list[str], scale: float) -> list[str]:
  """Returns the sweeps to do, each once; all if none is named."""
  for name in names:
    if name not in SWEEPS:
      known = ", ".join(SWEEPS)
      raise ValueError(f"--sweeps: {name!r} is unknown; there are {known}")
  # B=K shares no program with the others: too slow for a quick look.
  usual = [name for name in SWEEPS if scale >= 0.5 or name != "B=K"]
  return list(dict.fromkeys(names)) or usual


def points_of(base: Sizes, sweeps: list[str], scale: float):
  """Returns (axis, sizes) of everything to measure."""
  points = [("base", base)]
  if scale == 1:
    points.append(("setting 1", SETTING1))
  for name in sweeps:
    factors = SWEEPS[name] if scale >= 0.5 else FEW
    points += [(name, grown(base, name, factor)) for factor in factors]
  return points
