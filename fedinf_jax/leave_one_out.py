r"""Exact FIP (Definition 1): replay the training without the removed clients.

    ε_t^{r,*} = w_t(C → C \ r) − w_t

All removals run as one batched computation beside the actual training.
"""

from jax import lax

from fedinf_jax import fedavg
from fedinf_jax import removals
from fedinf_jax import tree


def replay_round(train, *, chunk: int):
  r"""Builds one round of the replay for all removals at once.

      w_t^(r) = Σ_{k ∈ C_t \ r} n_k / N(C_t \ r) · w_{t,m}^k(w_{t-1}^(r))

  A removal whose cohort is empty sits the round out: w_t^(r) = w_{t-1}^(r).

  Args:
    train: (params, wave, size_class) -> local models, leaves [G, ...].
    chunk: removals that are replayed together; the others wait, to bound
      memory.

  Returns:
    step(models, params, who, round_, waves, size_class, counts) -> models,
    where `models` has leaves [E, ...], `params` is w_t of the actual run, `who`
    are the E removals, `waves` is int [W, G], `size_class` [W] and `counts`
    [W, G].
  """

  def step(models, params, who, round_, waves, size_class, counts):
    def one_removal(inputs):
      model, counts = inputs
      shares = fedavg.weights(counts.reshape(-1), tree.dtype_of(model))

      def add_wave(total, wave):
        wave, size_class, share = wave
        part = tree.weighted_sum(share, train(model, wave, size_class))
        return tree.add(total, part), None

      shares = shares.reshape(counts.shape)
      zero = tree.zeros_like(model)
      return lax.scan(add_wave, zero, (waves, size_class, shares))[0]

    left = removals.counts_left(who, waves, counts)  # [E, W, G]
    trained = tree.map_rows(one_removal, (models, left), chunk)
    models = tree.select(left.sum((1, 2)) == 0, models, trained)
    # Until its first client is drawn a removal changes nothing: no rounding
    # may say otherwise.
    everyone = tree.repeat(params, len(who.number))
    return tree.select(round_ >= who.first, models, everyone)

  return step
