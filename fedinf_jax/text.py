"""Ids as text: one way out to files, screens and pages, and one way back.

An id is whatever a data set calls a client. Written as it is, a line break
would end a line, an escape sequence would command a terminal, and a lone
surrogate would fit no encoding.
"""

import re

# Control characters (line breaks and ESC among them), line and paragraph
# separators, characters that turn the direction of writing, lone surrogates.
_UNSAFE = "\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_LINE = re.compile(f"[{_UNSAFE}]")
_ID = re.compile(f"[\\\\{_UNSAFE}]")
_ESCAPED = re.compile(r"\\u([0-9a-f]{4})")
# A spreadsheet takes a cell that begins with one of these for a formula.
_FORMULA = tuple("=+-@'")


def escaped(name) -> str:
  r"""Returns an id (or another name) as one line of printable text.

  What is unsafe becomes \uXXXX, and so does a backslash: `unescaped` leads
  back.
  """
  return _ID.sub(_code, str(name))


def unescaped(text: str) -> str:
  """Returns the id that `escaped` wrote."""
  return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def printable(line) -> str:
  r"""Returns a line for a screen, or of JSON, that shows all it holds.

  What is unsafe becomes \uXXXX, as in JSON; ids in it are `escaped` already.
  """
  return _LINE.sub(_code, str(line))


def is_clean(content: str) -> bool:
  """Says whether every line of a file is as `printable` leaves it."""
  return all(not _LINE.search(line) for line in content.split("\n"))


def cell(name) -> str:
  """Returns `escaped` text as a cell that no spreadsheet takes for a formula.

  An apostrophe before it marks it as text; so one that is there gets another.
  """
  text = escaped(name)
  return f"'{text}" if text.startswith(_FORMULA) else text


def of_cell(content: str) -> str:
  """Returns the id that `cell` wrote."""
  return unescaped(content.removeprefix("'"))


def _code(found):
  return f"\\u{ord(found[0]):04x}"
