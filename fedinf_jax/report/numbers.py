"""Every number format of screen, page and figures. What is not known is "–"."""

import math

MISSING = "–"
PREFIXES = ("n", "µ", "m", "", "k", "M", "G", "T", "P")
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def fixed(value: float | None, decimals: int = 3) -> str:
  """Writes a number with n decimals."""
  return MISSING if _is_missing(value) else _minus(f"{value:.{decimals}f}")


def correlation(value: float | None) -> str:
  """Writes a number with three decimals; with more if 0.9997 would become 1."""
  if _is_missing(value):
    return MISSING
  decimals = (n for n in range(3, 7) if abs(round(value, n)) < 1)
  # Three for 1 itself, and for what differs from it by rounding only.
  return fixed(value, next(decimals, 3))


def digits(value: float | None, count: int = 2) -> str:
  """Writes a number with n significant digits; an exponent only from 1e6."""
  if _is_missing(value):
    return MISSING
  if math.isinf(value):
    return _minus(f"{value}".replace("inf", "∞"))
  if value == 0:
    return "0"
  exponent = int(f"{value:.{count - 1}e}".split("e")[1])
  if exponent >= 6:
    return scientific(value, count)
  return _minus(f"{value:,.{max(0, count - 1 - exponent)}f}")


def scientific(value: float | None, count: int = 1) -> str:
  """Writes a number with n significant digits and a short exponent: 2e15."""
  if _is_missing(value):
    return MISSING
  factor, _, exponent = f"{value:.{count - 1}e}".partition("e")
  return _minus(f"{factor}e{int(exponent)}")


def signed(value: float) -> str:
  """Writes a number with its sign, zero without one."""
  return _minus(f"{value:+g}") if value else "0"


def share(value: float | None) -> str:
  """Writes a fraction in per cent."""
  return MISSING if _is_missing(value) else _minus(f"{value:.0%}")


def amount(value: float | None, unit: str) -> str:
  """Writes a quantity with three digits and the prefix of its unit: 1.2 MB."""
  if _is_missing(value):
    return MISSING
  size, prefix = abs(value), PREFIXES.index("")
  # 999.7 would be written as 1e+03.
  while size >= 999.5 and prefix < len(PREFIXES) - 1:
    size, prefix = size / 1000, prefix + 1
  while 0 < size < 0.9995 and prefix > 0:
    size, prefix = size * 1000, prefix - 1
  sign = "−" if value < 0 else ""
  return f"{sign}{size:.3g} {PREFIXES[prefix]}{unit}"


def duration(seconds: float | None) -> str:
  """Writes a time in the unit that suits it: 3.2 ms, 40 s, 5.5 min, 12 h."""
  if _is_missing(seconds) or seconds < 120:
    return amount(seconds, "s")
  if seconds < 2 * 3600:
    return f"{seconds / 60:.3g} min"
  return f"{digits(seconds / 3600, 3)} h"


def power(exponent: int) -> str:
  """Writes a power of ten: 10⁻³."""
  return "10" + str(exponent).translate(SUPERSCRIPTS)


def _is_missing(value):
  return value is None or math.isnan(value)


def _minus(text):
  return text.replace("-", "−")
