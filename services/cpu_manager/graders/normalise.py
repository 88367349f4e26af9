"""Normal forms of short answers: the modes of `answer.match`.

Pure, linear in the text, and without patterns from callers, so they may run in the manager's own process.
"""

from __future__ import annotations

import re
import string
from collections import deque
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Final, Literal

Mode = Literal["exact", "casefold", "squad", "number", "choice"]

LONGEST_NUMBER: Final = 64
"""Characters. Longer runs of digits are compared as text."""

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_NUMBER: Final = re.compile(r"[-+\u2212]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3})?(?:\s?/\s?\d+)?")
_CHOICE: Final = re.compile(r"(?<![A-Za-z'\u2019])([A-Za-z])(?![A-Za-z'\u2019])")
_MARKED_CHOICE: Final = re.compile(
    r"(?i:answer|choice|option)(?:\s+is)?\s{0,3}[:=]?\s{0,3}[*({\[]{0,3}([A-Za-z])(?![A-Za-z'\u2019])"
    r"|\\boxed\{\s{0,3}(?:\\text\{)?\(?([A-Za-z])\)?\}"
)


def normal_form(text: str, mode: Mode) -> str | None:
    """Return the text's normal form; None if it contains nothing of the kind (no number, no choice).

    exact: unchanged. casefold: case folded, blanks collapsed. squad: also without punctuation and articles (the SQuAD
    evaluation's rule). number: the last number, exactly (1,000.0 is 1000; 1/2 is 0.5; signs of currency and percent
    are ignored). choice: one letter, the last one marked as the answer, else the last single letter.
    """
    return _FORMS[mode](text)


def _last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None


def _exact(text: str) -> str:
    return text


def _casefold(text: str) -> str:
    return " ".join(text.casefold().split())


def _squad(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _number(text: str) -> str | None:
    last = _last_match(_NUMBER, text)
    if last is None:
        return None
    token = last.group().replace(",", "").replace("\u2212", "-")
    if len(token) > LONGEST_NUMBER:
        return token
    numerator, _, denominator = token.partition("/")
    try:
        value = Fraction(Decimal(numerator.strip()))
        if denominator:
            value /= int(denominator)
    except (InvalidOperation, ZeroDivisionError):
        return token
    return str(value)


def _choice(text: str) -> str | None:
    marked = _last_match(_MARKED_CHOICE, text)
    if marked is not None:
        letter: str = marked.group(1) or marked.group(2)
        return letter.upper()
    alone: list[str] = _CHOICE.findall(text)
    if not alone:
        return None
    capitals = [letter for letter in alone if letter.isupper() and letter != "I"]  # "a" and "I" are common words
    return (capitals or alone)[-1].upper()


_FORMS: Final[Mapping[Mode, Callable[[str], str | None]]] = {
    "exact": _exact,
    "casefold": _casefold,
    "squad": _squad,
    "number": _number,
    "choice": _choice,
}
