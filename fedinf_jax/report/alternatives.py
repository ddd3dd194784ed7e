"""What is seen in a figure, in words, for those who do not see it."""

from fedinf_jax import text
from fedinf_jax.report import numbers
from fedinf_jax.report import remedies
from fedinf_jax.report import tracked_figures
from fedinf_jax.running import workdir


def alternative(name: str, contents: workdir.Contents) -> str:
  """Returns in words what a figure of FIGURES shows, "" if it is not there."""
  return _WORDS[name](contents) or ""


def _layers(contents):
  client, traces = tracked_figures.of_layers(contents)
  ends = (
    f"{layer} {numbers.digits(next(iter(of.values()))['norm'][-1])}"
    for layer, of in traces.items()
  )
  return (
    f"Client {text.escaped(client)}; size of the change of each layer at the"
    f" last round: {', '.join(ends)}."
  )


def _distance(contents):
  parts = [
    f"client {text.escaped(client)} {numbers.digits(size)} ("
    + ", ".join(f"{n} {numbers.digits(far)}" for n, far in fars.items())
    + ")"
    for client, size, fars in tracked_figures.at_the_end(contents)
  ]
  return (
    "At the last round, size of the exact change and, in brackets, the distance"
    f" of each estimate from it: {'; '.join(parts)}."
  )


def _agreement(contents):
  parts = [
    f"{name} {numbers.correlation(measured['fil_pearson'])}"
    for name, measured in contents.summary["estimators"].items()
  ]
  return f"Pearson's r at the last round: {', '.join(parts)}."


def _debug(contents):
  parts = [
    f"{name} {numbers.fixed(score['auroc'], 2)}"
    for name, score in contents.debug["scores"].items()
  ]
  return f"AUROC: {', '.join(parts)}."


_WORDS = {
  "fig1_layers": _layers,
  "fig2_distance": _distance,
  "fig3_pearson": _agreement,
  "fig3_scatter": _agreement,
  "fig4_cleanse": remedies.cleansed,
  "fig4_cleanse_rounds": remedies.cleansed,
  "debug": _debug,
}
