"""Two sections of the page: clients left out, and clients made bad."""

from fedinf_jax import text
from fedinf_jax import wording
from fedinf_jax.report import remedies
from fedinf_jax.report import tables
from fedinf_jax.running import workdir


def cleansed(contents: workdir.Contents) -> str:
  """Says what became of the model without harmful clients; "": not tried."""
  if not contents.cleanse:
    return ""
  c = contents.cleanse
  said = remedies.cleansed(contents)
  return (
    '<section id="cleansing"><h2>Without the harmful clients</h2>'
    f"{tables.paragraphs([said] if said else [], 'remedy')}"
    f"<p>Trained on from round {c['round']:,} without some of the clients,"
    f" chosen by {tables.escaped(wording.titled(c['estimator']))} on"
    f" {c['validation_examples']:,} examples and measured on"
    f" {c['test_examples']:,} others (held out). Fig. 4 shows the same, and the"
    " paper's way beside it.</p>"
    '<div class="scroll" tabindex="0" role="region" aria-label="Clients left'
    f' out">{tables.cleansed(c)}</div></section>'
  )


def debugged(contents: workdir.Contents, figures: str) -> str:
  """Says who was made bad, which score finds them and what is gained.

  Args:
    contents: of the workdir.
    figures: about it, HTML.
  """
  if not contents.debug:
    return ""
  debug = contents.debug
  ids = [text.escaped(name) for name in debug["bad"]]
  return (
    '<section id="debug"><h2>Bad clients</h2>'
    f"{tables.paragraphs(remedies.debugged(contents), 'remedy')}"
    f"<p>{len(ids):,} of {debug['clients']:,} clients were made bad"
    f" ({tables.escaped(debug['kind'])}):"
    f" {', '.join(map(tables.escaped, ids))}. AUROC is the chance that a score"
    " ranks a bad client below a good one: 0.5 is guessing, 1 is perfect."
    " Found (precision at k): of as many clients as are bad, those with the"
    " worst scores, the share that is bad. Scores are measured on"
    f" {debug['validation_examples']:,} examples; the model, trained again"
    " without those clients, on"
    f" {debug['test_examples']:,} others.</p>"
    '<div class="scroll" tabindex="0" role="region" aria-label="Scores">'
    f"{tables.debug(debug)}</div>"
    '<figure class="over-rounds"><h3>AUROC over the rounds</h3>'
    '<div id="detection"></div></figure>'
    f"{figures}</section>"
  )
