"""Every number format of screen, page and figures. What is not known is "–"."""

from collections.abc import Callable
import functools
import math
from typing import Concatenate
from typing import ParamSpec

MISSING = "–"
PREFIXES = ("n", "µ", "m", "", "k", "M", "G", "T", "P")
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_Options = ParamSpec("_Options")


def _typeset(
  write: Callable[Concatenate[float, _Options], str],
) -> Callable[Concatenate[float | None, _Options], str]:
  """Lets a format write "–" for what is not known, and a minus for a hyphen."""

  @functools.wraps(write)
  def typeset(value, *args, **options):
    if value is None or math.isnan(value):
      return MISSING
    return write(value, *args, **options).replace("-", "−")

  return typeset


@_typeset
def fixed(value: float, decimals: int = 3) -> str:
  """Writes a number with n decimals."""
  return f"{value:.{decimals}f}"


@_typeset
def correlation(value: float) -> str:
  """Writes a number with three decimals; with more if 0.9997 would become 1."""
  decimals = (n for n in range(3, 7) if abs(round(value, n)) < 1)
  # Three for 1 itself, and for what differs from it by rounding only.
  return fixed(value, next(decimals, 3))


@_typeset
def digits(value: float, count: int = 2) -> str:
  """Writes a number with n significant digits; an exponent only from 1e6."""
  if math.isinf(value):
    return f"{value}".replace("inf", "∞")
  if value == 0:
    return "0"
  exponent = int(f"{value:.{count - 1}e}".split("e")[1])
  if exponent >= 6:
    return scientific(value, count)
  return f"{value:,.{max(0, count - 1 - exponent)}f}"


@_typeset
def scientific(value: float, count: int = 1) -> str:
  """Writes a number with n significant digits and a short exponent: 2e15."""
  factor, _, exponent = f"{value:.{count - 1}e}".partition("e")
  return f"{factor}e{int(exponent)}"


@_typeset
def signed(value: float) -> str:
  """Writes a number with its sign, zero without one."""
  return f"{value:+g}" if value else "0"


@_typeset
def share(value: float) -> str:
  """Writes a fraction in per cent."""
  return f"{value:.0%}"


@_typeset
def amount(value: float, unit: str) -> str:
  """Writes a quantity with three digits and the prefix of its unit: 1.2 MB."""
  size, prefix = abs(value), PREFIXES.index("")
  # 999.7 would be written as 1e+03.
  while size >= 999.5 and prefix < len(PREFIXES) - 1:
    size, prefix = size / 1000, prefix + 1
  while 0 < size < 0.9995 and prefix > 0:
    size, prefix = size * 1000, prefix - 1
  sign = "-" if value < 0 else ""
  return f"{sign}{size:.3g} {PREFIXES[prefix]}{unit}"


@_typeset
def duration(seconds: float) -> str:
  """Writes a time in the unit that suits it: 3.2 ms, 40 s, 5.5 min, 12 h."""
  if seconds < 120:
    return amount(seconds, "s")
  if seconds < 2 * 3600:
    return f"{seconds / 60:.3g} min"
  return f"{digits(seconds / 3600, 3)} h"


def power(exponent: int) -> str:
  """Writes a power of ten: 10⁻³."""
  return "10" + str(exponent).translate(SUPERSCRIPTS)
