"""One live line on a terminal; nothing where nobody looks."""

import contextlib

from rich import progress as rich_progress


@contextlib.contextmanager
def line(screen, rounds: int, done: int):
  """Shows how a run goes on.

  Args:
    screen: a rich console.
    rounds: of the whole run.
    done: rounds done before.

  Yields:
    show(round_, seconds_a_round, metrics): `metrics` is a line of
    metrics.jsonl, or None if the last one still holds.
  """
  columns = (
    rich_progress.TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
    rich_progress.BarColumn(bar_width=20),
    rich_progress.TextColumn("{task.fields[words]}"),
    rich_progress.TextColumn("{task.fields[pace]}"),
    rich_progress.TimeRemainingColumn(compact=True),
    rich_progress.TextColumn("left"),
  )
  with rich_progress.Progress(
    *columns,
    console=screen,
    disable=not screen.is_terminal,
    transient=True,
    speed_estimate_period=600,
  ) as bar:
    task = bar.add_task(
      "round", total=rounds, completed=done, words="compiling …", pace=""
    )

    def show(round_, seconds, metrics):
      fields = {"pace": f"{seconds:.2g} s/round"}
      if metrics is not None:
        fields["words"] = words(metrics)
      elif bar.tasks[task].fields["words"].startswith("compiling"):
        fields["words"] = ""
      bar.update(task, completed=round_, **fields)

    yield show


def words(metrics: dict) -> str:
  """Says in short what a line of metrics.jsonl holds."""
  parts = [f"loss {metrics['loss']:.3f}", f"acc {metrics['accuracy']:.3f}"]
  known = {
    name: e["fil_pearson"]
    for name, e in metrics["estimators"].items()
    if e["fil_pearson"] is not None
  }
  if known:
    best = max(known, key=known.get)
    parts.append(f"Pearson {known[best]:.3f} ({best})")
  truncated = [e["truncated_fraction"] for e in metrics["estimators"].values()]
  if truncated:
    parts.append(f"truncated {max(truncated):.0%}")
  return ", ".join(parts)
