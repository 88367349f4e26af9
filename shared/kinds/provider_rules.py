"""Rules about answers of an external service: which of them mean pushback, exhaustion or failure.

A kind that calls such a service declares a list of them in its parameters. The first rule that matches counts, before
what `services.quota_manager.provider` knows itself. Example: a 200 with a page that asks for a CAPTCHA.

    {"when": {"status": [200], "body": "(?i)captcha"}, "then": "pushed-back", "for_s": 60, "reason": "CAPTCHA"}

Patterns are of RE2: the time of a search is at most the length of the text times the size of the program. Both are
bounded, and so are the number of patterns and their length together, because every process that reads the parameters
compiles them (tests/services/quota_manager/test_provider_rules.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec
import re2

from shared.policy.model.results import UpstreamAnswer

MOST_RULES: Final = 32
MOST_PATTERN: Final = 1024
"""Characters of a pattern."""
MOST_HEADERS: Final = 8
"""Headers that one rule looks at."""
MOST_PATTERNS: Final = 32
"""Patterns of all rules of one call."""
MOST_PATTERN_CHARS: Final = 4096
"""Characters of all these patterns: a class of letters (`[\\pL\\pN]`) takes 0.1 ms to compile."""
PATTERN_BYTES: Final = 256 << 10
"""Memory of one compiled pattern."""

Status = Annotated[int, msgspec.Meta(ge=100, le=599)]
StatusRange = Annotated[str, msgspec.Meta(pattern=r"^[1-5][0-9][0-9]-[1-5][0-9][0-9]$", examples=["500-599"])]
Statuses = Annotated[list[Status | StatusRange], msgspec.Meta(max_length=32)]
"""Statuses, and ranges of them that contain both ends."""
Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_PATTERN)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class PointerIs(_Part, frozen=True, kw_only=True):
    """Condition on a value of a JSON body."""

    path: Annotated[str, msgspec.Meta(max_length=256, pattern="^(/.*)?$")]
    """JSON pointer (RFC 6901); empty: the whole body."""
    value: Any = msgspec.field(name="is")
    """`empty`: null, an empty text, list or object. `missing`: there is none. Any other value: equal to it."""


class When(_Part, frozen=True, kw_only=True):
    """Conditions on one answer; all that are given must hold."""

    status: Statuses | None = None
    header: Annotated[dict[str, Pattern], msgspec.Meta(max_length=MOST_HEADERS)] = {}
    """Name -> pattern that a value of this header contains."""
    body: Pattern | None = None
    """Pattern that the first part of the body contains."""
    pointer: PointerIs | None = None

    def __post_init__(self) -> None:
        if self.status is None and not self.header and self.body is None and self.pointer is None:
            raise ValueError("a rule needs a condition: `status`, `header`, `body` or `pointer`")

    @property
    def patterns(self) -> tuple[str, ...]:
        """All patterns of the condition."""
        return (*self.header.values(), *(() if self.body is None else (self.body,)))


class ProviderRule(_Part, frozen=True, kw_only=True):
    """What an answer means if all conditions hold."""

    when: When
    then: UpstreamAnswer
    for_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] | None = None
    """Seconds for which no call is made; null: as its headers say."""
    reason: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """Text for people who look at the quota."""


ProviderRules = Annotated[tuple[ProviderRule, ...], msgspec.Meta(max_length=MOST_RULES)]


def check_rules(rules: Sequence[ProviderRule]) -> None:
    """Check the patterns of all rules: first how many and how long they are, then each.

    Raises:
        ValueError: there are too many, they are too long, or one is no pattern.
    """
    patterns = [pattern for rule in rules for pattern in rule.when.patterns]
    length = sum(map(len, patterns))
    if len(patterns) > MOST_PATTERNS or length > MOST_PATTERN_CHARS:
        raise ValueError(
            f"`rules` have {len(patterns)} patterns of {length} characters; they may have {MOST_PATTERNS} patterns of "
            f"{MOST_PATTERN_CHARS} characters together"
        )
    for pattern in patterns:
        compiled(pattern)


def compiled(pattern: str) -> Any:
    """Return a compiled pattern.

    Raises:
        ValueError: it is no pattern of RE2, or takes more than `PATTERN_BYTES`.
    """
    found = _compiled(pattern)
    if isinstance(found, str):
        raise ValueError(found)
    return found


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    """Return the pattern, or the text of its error, which is also kept: compilation takes up to 10 ms."""
    options = re2.Options()
    options.log_errors, options.max_mem = False, PATTERN_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0] if error.args else ""
        why = why.decode("utf-8", "replace") if isinstance(why, bytes) else why
        return f"{pattern!r} is no pattern of RE2: {why}"


def includes(statuses: Statuses, status: int) -> bool:
    """Return whether a status is in a list of statuses and ranges."""
    for one in statuses:
        first, last = (one, one) if isinstance(one, int) else (int(one[:3]), int(one[4:]))
        if first <= status <= last:
            return True
    return False
