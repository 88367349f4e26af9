"""Patterns of names in bodies and paths, and their words in messages.

msgspec matches with Python's `re`, where `$` also matches before a final newline; `whole` closes this gap. Pydantic's
`$` matches at the end alone, and its expressions have no look-ahead.
"""

from __future__ import annotations

import re
from typing import Final

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
BATCH: Final = r"^[A-Za-z0-9_-]{1,64}$"
TRAJECTORY: Final = r"^t[0-9a-f]{16,24}$"
CURSOR: Final = r"^(\d{1,18}-\d{1,18})?$"
IMAGE: Final = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$"
SESSION: Final = r"^[A-Za-z0-9._-]+$"
VARIABLE: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
WITHOUT_NUL: Final = r"^[^\x00]*$"
HEADER: Final = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$"
CONTENT_TYPE: Final = r"^[A-Za-z0-9!#$&^_.+/;= -]{1,128}$"
POINTER: Final = r"^(/.*)?$"
FIELD: Final = r"^[a-z_]{1,64}$"
PATH: Final = "^/"
SYMBOL: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
GPU_ARCHITECTURE: Final = r"^(sm|compute)_[0-9]{2,3}[af]?$"
PRINTABLE: Final = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
"""Without control characters, and without those that move or hide text on a terminal."""
STATUS_RANGE: Final = r"^[1-5][0-9][0-9]-[1-5][0-9][0-9]$"

WORDS: Final = {
    NAME: "1 to 64 letters, digits, '.', '_' and '-', beginning with a letter or a digit",
    BATCH: "1 to 64 letters, digits, '_' and '-'",
    TRAJECTORY: "'t' and 16 to 24 hexadecimal digits: the id in the answer that opens a trajectory",
    CURSOR: "the `cursor` of a line of results, for example 1764000000000-0, or empty",
    IMAGE: "letters, digits, '.', '_', '/', ':', '@' and '-', beginning with a letter or a digit",
    SESSION: "letters, digits, '.', '_' and '-'",
    VARIABLE: "letters, digits and '_', beginning with a letter or '_'",
    WITHOUT_NUL: "text without NUL",
    HEADER: "1 to 128 letters, digits and '!#$%&'*+.^_`|~-': the name of a header",
    CONTENT_TYPE: "a media type such as application/json, of at most 128 characters",
    POINTER: "a JSON pointer such as /choices/0/text, or empty",
    FIELD: "1 to 64 small letters and '_': the name of a field",
    PATH: "a path, beginning with '/'",
    SYMBOL: "1 to 128 letters, digits and '_', beginning with a letter or '_'",
    GPU_ARCHITECTURE: "a GPU architecture such as sm_90, or compute_90 for PTX",
    PRINTABLE: "printable text without control characters, such as usd or tokens",
    STATUS_RANGE: "two statuses such as 500-599",
}
"""Pattern -> what it allows."""

_BEFORE_NEWLINE: Final = r"(?!\n)"
_name: Final = re.compile(NAME)


def is_name(text: str) -> bool:
    """Return whether it is a name of a tenant or a task."""
    return _name.fullmatch(text) is not None


def whole(pattern: str) -> str:
    """Return the pattern for Python's `re`: the whole text matches, without a newline at its end."""
    return f"{pattern.removesuffix('$')}{_BEFORE_NEWLINE}$"


def words(pattern: str) -> str:
    """Return what a pattern allows; the pattern itself if it has no words here."""
    return WORDS.get(pattern.replace(_BEFORE_NEWLINE, ""), f"text that matches {pattern}")
