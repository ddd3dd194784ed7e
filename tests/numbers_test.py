"""How numbers are written."""

import math

import pytest

from fedinf_jax.report import numbers


@pytest.mark.parametrize(
  ("written", "expected"),
  [
    (numbers.fixed(0.98765), "0.988"),
    (numbers.fixed(0.99971), "1.000"),
    (numbers.correlation(0.98765), "0.988"),
    (numbers.correlation(0.99971), "0.9997"),
    (numbers.correlation(-0.99971), "−0.9997"),
    (numbers.correlation(1.0), "1.000"),
    (numbers.correlation(1 - 1e-12), "1.000"),
    (numbers.fixed(-0.5, 1), "−0.5"),
    (numbers.digits(0.000123), "0.00012"),
    (numbers.digits(0.00999, 2), "0.010"),
    (numbers.digits(1234.5), "1,234"),
    (numbers.digits(1.26e7), "1.3e7"),
    (numbers.digits(0, 3), "0"),
    (numbers.digits(-math.inf), "−∞"),
    (numbers.scientific(2.4e15), "2e15"),
    (numbers.scientific(0.00012, 2), "1.2e−4"),
    (numbers.signed(-0.002), "−0.002"),
    (numbers.signed(0), "0"),
    (numbers.share(0.456), "46%"),
    (numbers.amount(305_000, "B"), "305 kB"),
    (numbers.amount(999.7, "B"), "1 kB"),
    (numbers.amount(0, "B"), "0 B"),
    (numbers.amount(0.00123, "s"), "1.23 ms"),
    (numbers.amount(2e19, "op"), "2e+04 Pop"),
    (numbers.duration(0.5), "500 ms"),
    (numbers.duration(90), "90 s"),
    (numbers.duration(600), "10 min"),
    (numbers.duration(1e5), "27.8 h"),
    (numbers.power(-12), "10⁻¹²"),
  ],
)
def test_numbers(written, expected):
  assert written == expected


def test_what_is_not_known_is_a_dash():
  for write in (
    numbers.fixed,
    numbers.correlation,
    numbers.digits,
    numbers.scientific,
    numbers.share,
    numbers.duration,
    lambda value: numbers.amount(value, "B"),
  ):
    assert write(None) == write(math.nan) == "–"
