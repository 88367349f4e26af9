"""Numbers for people, in tables and error texts."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

LEAST: Final = 1e-6
"""Least number that is written without an exponent."""


def number(value: float, digits: int = 6) -> str:
    """Return a number with at most `digits` digits, or from 10,000 on as a whole number with separators."""
    if value >= 9_999.5:
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return f"{Decimal(text):f}" if "e" in text and abs(value) >= LEAST else text
