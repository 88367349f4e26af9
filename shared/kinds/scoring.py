"""Scores in received text and JSON: JSON pointers, patterns of RE2, numbers. Pure.

What is read is hostile: a model may have written it. JSON is decoded up to `MOST_JSON` bytes. A caller's pattern runs
in RE2, over `MOST_SEARCHED` characters. A search is linear in the text, but a pattern that matches often may look at
the rest of the text each time: so `in_time` ends it, and the caller runs it beside the event loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import msgspec

from shared.kinds import provider_rules
from shared.runtime.validation import UNREADABLE

SHOWN_CHARS: Final = 200
LONGEST_NUMBER: Final = 64
"""Characters of a number in a text."""
MOST_SEARCHED: Final = 16 << 10
"""Characters at the end of a text in which a pattern is searched: each match costs some microseconds."""
MOST_JSON: Final = 2 << 20
"""Bytes of a body that is read as JSON: 2 MiB take some 20 ms."""
_MISSING: Final = object()


class NoScore(ValueError):
    """An answer in which the score is missing or no number. The message says what is there."""


class InvalidPattern(ValueError):
    """A pattern that RE2 does not accept. The message has its error."""


def always() -> bool:
    """Return true: a search without a limit of time."""
    return True


def compiled(pattern: str) -> Any:
    """Return a compiled pattern with exactly one group.

    Raises:
        InvalidPattern: RE2 rejects it, or it has another number of groups.
    """
    compiled = _compiled(pattern)
    if isinstance(compiled, str):
        raise InvalidPattern(compiled)
    return compiled


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> Any:
    """Return the pattern, or the text of its error, which is also kept: compilation takes up to 10 ms."""
    try:
        found = provider_rules.compiled(pattern)
    except ValueError as error:
        return f"pattern: {str(error)[:SHOWN_CHARS]}; RE2 has no look-around and no back-references"
    if found.groups != 1:
        return f"pattern: it has {found.groups} groups; write one group, around the score"
    return found


def at_pointer(document: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer (RFC 6901).

    Raises:
        NoScore: there is none.
    """
    here = document
    for token in pointer.split("/")[1:]:
        name, value = token.replace("~1", "/").replace("~0", "~"), _MISSING
        if isinstance(here, dict):
            value = here.get(name, _MISSING)
        elif isinstance(here, list) and name.isascii() and name.isdecimal() and (name == "0" or name[0] != "0"):
            value = here[int(name)] if len(name) < 10 and int(name) < len(here) else _MISSING
        if value is _MISSING:
            raise NoScore(f"the answer has nothing at {pointer[:SHOWN_CHARS]!r}")
        here = value
    return here


def decoded_json(body: bytes) -> Any:
    """Return the body as JSON.

    Raises:
        NoScore: it is none, or longer than `MOST_JSON`.
    """
    if len(body) > MOST_JSON:
        raise NoScore(f"the answer has {len(body)} bytes; one of up to {MOST_JSON} is read as JSON")
    try:
        return msgspec.json.decode(body)
    except UNREADABLE as error:
        raise NoScore(f"the answer is not JSON: {str(error)[:SHOWN_CHARS]}") from error


def last_match(pattern: str, text: str, in_time: Callable[[], bool] = always) -> str:
    """Return the group of a pattern's last match in the end of a text. `in_time`: asked after each match.

    Raises:
        NoScore: there is no match, or the search took too long.
        InvalidPattern: the pattern is invalid.
    """
    last = None
    for last in compiled(pattern).finditer(text[-MOST_SEARCHED:]):  # noqa: B007  # the last one counts
        if not in_time():
            raise NoScore("the search for the pattern took too long in this answer; write a pattern that matches less")
    if last is None or last.group(1) is None:
        raise NoScore("the pattern does not match the answer")
    return str(last.group(1))


def number(value: Any) -> float:
    """Return a number of the answer: a JSON number, true or false, or a text that is a decimal number.

    Raises:
        NoScore: it is none of these, or not finite.
    """
    if isinstance(value, str) and len(value.strip()) <= LONGEST_NUMBER and "_" not in value:
        with suppress(ValueError):
            value = float(value)
    with suppress(OverflowError):
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    shown = value if isinstance(value, str) else type(value).__name__
    raise NoScore(f"the score is no number: {str(shown)[:SHOWN_CHARS]!r}")


def scaled(value: Any, scale: float) -> float:
    """Return a number of the answer times `scale`.

    Raises:
        NoScore: it is no number, or not finite.
    """
    score = number(value) * scale
    if not math.isfinite(score):
        raise NoScore("the score is not finite")
    return score
