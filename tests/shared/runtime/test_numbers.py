"""Numbers for people: no exponents from a millionth on."""

from __future__ import annotations

import math

import pytest

from shared.runtime.numbers import number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.5, "0.5"),
        (1e-5, "0.00001"),
        (2.5e-6, "0.0000025"),
        (2.5e-7, "2.5e-07"),
        (1e-22, "1e-22"),
        (1234.5, "1234.5"),
        (9999.4, "9999.4"),
        (9999.5, "10,000"),
        (1e6, "1,000,000"),
        (2_073_600.0, "2,073,600"),
        (1e9, "1,000,000,000"),
        (-1e7, "-10000000"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_a_number_has_no_exponent(value: float, text: str) -> None:
    assert number(value) == text


def test_a_number_has_at_most_so_many_digits() -> None:
    assert number(1234.5, 4) == "1234"
    assert number(0.000123456, 4) == "0.0001235"
