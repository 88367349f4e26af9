"""What an answer of an external service says about the next calls: pushback, failure, exhaustion, and a time. No IO.

Rules of the caller come first (`shared.kinds.provider_rules`), then what is common among providers. Texts of answers
are never part of a reason: all tenants of a quota see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from services.quota_manager.retry_headers import wait_s
from shared.kinds.provider_rules import PointerIs, ProviderRule, When, compiled, includes
from shared.kinds.scoring import MOST_JSON
from shared.policy.model.results import UpstreamAnswer

MOST_TEXT: Final = 32 << 10
"""Bytes of a body in which patterns are looked for: from its begin."""
OVERLOADED: Final = 529
"""Status of overloaded providers."""
REPEATABLE: Final = frozenset({408, 425, 500, 502, 503, 504, OVERLOADED})
"""Statuses of failures after which the same call may succeed."""
NO_CREDIT: Final = r"(?i)credit balance|insufficient[_ ](quota|credits?|funds|balance)"
"""In the body of a 400, 403 or 429. A 429 that only names billing is a rate limit: its text says how to get more."""
NO_BILLING: Final = r"(?i)billing[_ ](hard[_ ]limit|details|disabled|not)|(requires|enable) billing|no active billing"
"""In the body of a 400 or 403."""
RETRY_INFO: Final = r'"retryDelay":\s*"(\d{1,6}(\.\d{1,9})?)s"'
"""Google's RetryInfo, in the body."""


class Reading(NamedTuple):
    """Meaning of one answer."""

    answer: UpstreamAnswer
    not_before_s: float = 0.0
    """Seconds from now for which no call is wanted; 0: none were named. At most an hour."""
    reason: str = ""
    retryable: bool = False
    """The same call may succeed later. Whether it is safe to repeat depends also on its method."""


def read_answer(
    status: int,
    headers: Mapping[str, str] | Iterable[tuple[str, str]],
    body: bytes,
    rules: Sequence[ProviderRule],
    now_unix: float,
) -> Reading:
    """Return the meaning of an answer. O(patterns * their programs * `MOST_TEXT`): run it beside the
    event loop if there are patterns. The body is parsed once if a rule has a pointer.
    """
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    answer = _Answer(status, [(name.lower(), value) for name, value in pairs], body)
    rule = next((one for one in rules if answer.is_as(one.when)), None)
    if rule is None:
        return _common(answer, now_unix)
    asked_s = wait_s(answer.headers, now_unix, refused=rule.then != "ok") if rule.for_s is None else rule.for_s
    reason = rule.reason or ("" if rule.then == "ok" else f"HTTP {status}, by a rule of the caller")
    return Reading(rule.then, asked_s, _printable(reason), rule.then != "ok")


def _common(answer: _Answer, now_unix: float) -> Reading:
    status = answer.status
    asked_s = wait_s(answer.headers, now_unix, refused=status >= 400)
    if status == 402:
        return Reading("exhausted", asked_s, "HTTP 402: the account has no credit", True)
    if status in (400, 403, 429) and answer.contains(NO_CREDIT):
        return Reading("exhausted", asked_s, f"HTTP {status}: the account has no credit", True)
    if status in (400, 403) and answer.contains(NO_BILLING):
        return Reading("exhausted", asked_s, f"HTTP {status}: the account's billing is not active", True)
    if status == 429:
        return Reading("pushed-back", asked_s or answer.retry_info_s(), "HTTP 429: too many calls", True)
    if status == OVERLOADED:
        return Reading("pushed-back", asked_s, f"HTTP {status}: overloaded", True)
    if status >= 500 or status == 408:
        return Reading("failed", asked_s, f"HTTP {status}", status in REPEATABLE)
    return Reading("ok", asked_s, "no call is left in this period" if asked_s else "", False)


class _Answer:
    """One answer, parsed when a condition needs it."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self._body = body
        self._text: str | None = None
        self._json: tuple[bool, Any] | None = None

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = self._body[:MOST_TEXT].decode("utf-8", "replace")
        return self._text

    def contains(self, pattern: str) -> bool:
        return compiled(pattern).search(self.text) is not None

    def retry_info_s(self) -> float:
        found = compiled(RETRY_INFO).search(self.text)
        return min(float(found.group(1)), 3600.0) if found is not None else 0.0

    def is_as(self, when: When) -> bool:
        """Return whether all conditions hold."""
        if when.status is not None and not includes(when.status, self.status):
            return False
        for name, pattern in when.header.items():
            values = [value for known, value in self.headers if known == name.lower()]
            if not any(compiled(pattern).search(value[:MOST_TEXT]) for value in values):
                return False
        if when.body is not None and not self.contains(when.body):
            return False
        return when.pointer is None or self._pointer_is(when.pointer)

    def _pointer_is(self, condition: PointerIs) -> bool:
        parsed, document = self._document()
        if not parsed:
            return False
        found, value = _at(document, condition.path)
        if condition.value == "missing":
            return not found
        if condition.value == "empty":
            return found and (value is None or (isinstance(value, str | list | dict) and not value))
        return found and type(value) is type(condition.value) and bool(value == condition.value)

    def _document(self) -> tuple[bool, Any]:
        if self._json is None:
            try:
                parsed = len(self._body) <= MOST_JSON
                self._json = (parsed, msgspec.json.decode(self._body) if parsed else None)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._json = (False, None)
        return self._json


def _at(document: Any, path: str) -> tuple[bool, Any]:
    """Return (whether there is a value, the value) at a JSON pointer."""
    for part in path.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list) and part.isascii() and part.isdigit() and int(part[:9]) < len(document):
            document = document[int(part[:9])]
        else:
            return False, None
    return True, document


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
