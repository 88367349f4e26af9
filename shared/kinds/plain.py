"""Check of parameters of free form: their values can be written as JSON again, and every reader accepts them."""

from __future__ import annotations

import math
from typing import Any

MOST_DEEP = 64
"""Lists and objects inside each other."""


def check_plain(value: Any, where: str, deep: int = MOST_DEEP) -> None:
    """Reject decoded JSON that other processes could not write or read.

    Args:
        value: decoded JSON.
        where: its name, for the message.
        deep: levels of lists and objects that are still allowed.

    Raises:
        ValueError: text that is not Unicode, a number that is not finite, or too deep nesting.
    """
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError(f"{where}: half of a surrogate pair is not text")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: numbers must be finite")
    elif isinstance(value, dict | list):
        if not deep:
            raise ValueError(f"{where}: more than {MOST_DEEP} lists and objects inside each other")
        for key in value if isinstance(value, dict) else ():
            check_plain(key, where)
        for inner in value.values() if isinstance(value, dict) else value:
            check_plain(inner, where, deep - 1)
