"""The compact form, in each association, against explicit matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedinf_jax import tree
from fedinf_jax.curvature import descent
from fedinf_jax.curvature import rows
from fedinf_jax.linalg import low_rank

B, M, S, WIDTHS = 3, 2, 4, (5, 3)


def make(num_removals, factor=False, layerwise=False):
  draw = np.random.default_rng(0)
  rows = [0.4 * draw.normal(size=(B, M, S, p)) for p in WIDTHS]
  factors = draw.normal(size=(B, M, S)) if factor else None
  eps = [jnp.asarray(draw.normal(size=(num_removals, p))) for p in WIDTHS]
  base = np.array([0.5, 0.3, 0.2])
  shares = np.tile(base, (num_removals, 1))
  shares[1] = [0, 0.6, 0.4]
  shares[4] = [0.7, 0, 0.3]
  blocks = tree.layer_blocks(2, layerwise=layerwise)
  return low_rank.Rows(rows, factors), eps, shares, base, blocks


def literal(report, eps, shares, blocks, keep=None):
  """Σ_k a_{r,k} (ε − P_k ε) with P_k multiplied out."""
  eps = [np.asarray(e) for e in eps]
  lost = [None for _ in eps]
  gains = {}
  for block in blocks:
    e = np.concatenate([eps[j] for j in block], 1)
    total = np.zeros_like(e)
    gain = np.zeros((len(e), B))
    for k in range(B):
      p = np.eye(e.shape[1])
      for i in range(M):
        g = np.concatenate([report.rows[j][k, i] for j in block], 1)
        d = np.eye(S) if report.factor is None else np.diag(report.factor[k, i])
        p = (np.eye(len(p)) - g.T @ d @ g) @ p
      d = e - e @ p.T
      gain[:, k] = ((e - d) ** 2).sum(1) - (e**2).sum(1)
      s = shares[:, k] * (1 if keep is None else gain[:, k] <= keep)
      total += s[:, None] * d
    gains[block] = gain
    ends = np.cumsum([eps[j].shape[1] for j in block])[:-1]
    for j, part in zip(block, np.split(total, ends, axis=1), strict=True):
      lost[j] = part
  return lost, gains


@pytest.mark.parametrize("factor", [False, True])
@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("num_removals", [5, 400])
@pytest.mark.parametrize("columns", [1, 2, 4096])  # Sums in pieces, or whole.
def test_every_association_gives_the_same(
  num_removals, layerwise, factor, columns, monkeypatch
):
  monkeypatch.setattr(low_rank, "COLUMNS", columns)
  report, eps, shares, base, blocks = make(num_removals, factor, layerwise)
  expected, gains = literal(report, eps, shares, blocks)
  hits = jnp.array([1, 4, num_removals])  # The last one is padding.
  grams = low_rank.gram_matrices(report, blocks, whole=False)
  for extra in ({}, {"base": base, "hits": hits}):
    lost = low_rank.rows_lost(
      report, grams, eps, jnp.asarray(shares), blocks, **extra
    )
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), lost, expected
    )
  everything = tuple(range(len(eps)))
  cheaper = low_rank.explicit_is_cheaper(report, everything, num_removals, hits)
  assert cheaper == (num_removals == 400)  # Both ways were taken above.

  threshold, seen = 0.1, {}

  def keep(gain, block):
    seen[block] = gain
    return gain <= threshold

  grams = low_rank.gram_matrices(report, blocks, whole=True)
  lost = low_rank.rows_lost(
    report, grams, eps, jnp.asarray(shares), blocks, keep
  )
  expected, _ = literal(report, eps, shares, blocks, keep=threshold)
  for block, gain in gains.items():
    np.testing.assert_allclose(seen[block], gain, atol=1e-12)
    assert 0 < (gain <= threshold).mean() < 1 or not factor
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), lost, expected
  )


def test_the_recursion_gives_the_same():
  report, eps, shares, _, blocks = make(6, factor=True)
  expected, _ = literal(report, eps, shares, blocks)
  plain = descent.Descent(None, 0.1)
  lost_of = rows._lost(layerwise=False)
  total = [np.zeros_like(e) for e in eps]
  for k in range(B):
    one = low_rank.Rows([r[k] for r in report.rows], report.factor[k])
    lost = lost_of(plain, one, eps)
    total = [t + shares[:, k : k + 1] * d for t, d in
             zip(total, lost, strict=True)]  # fmt: skip
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), total, expected
  )
