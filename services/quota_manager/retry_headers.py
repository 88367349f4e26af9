"""Time for which a provider wants no call, from the headers of its answer.

`Retry-After` counts first, as the RateLimit draft asks. Else, each limit of which nothing remains has to be reset:

| headers | reset |
|---|---|
| `x-ratelimit-remaining-*`, `-reset-*` (OpenAI), `x-ratelimit-*` (GitHub), `x-rate-limit-*` | 6m0s, 12.5; Unix s |
| `anthropic-ratelimit-*-remaining`, `-reset` | RFC 3339 |
| `ratelimit-remaining`, `ratelimit-reset` (draft 00 to 06) | seconds |
| `ratelimit: limit=10, remaining=0, reset=5` (draft 07) | seconds |
| `ratelimit: "burst";r=0;t=5`, `ratelimit-policy: "burst";q=10;w=60` (since draft 08) | seconds |

Values that do not fit their form are ignored, and so are negative ones and times in the past. A time is at most
`MOST_WAIT_S`. (The package retryheader reads two of these forms; it has one release, so it is not used.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

MOST_WAIT_S: Final = 3600.0
MOST_VALUE: Final = 1024
"""Characters of a line's value; longer ones are ignored."""
LISTS: Final = frozenset({"ratelimit", "ratelimit-policy"})
"""Fields whose lines are one list (RFC 9651, 4.2)."""
UNIX_S: Final = 1e9
"""Numbers from here on are Unix seconds, thousandfold ones are milliseconds."""

_NUMBER: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)
_DURATION: Final = re.compile(
    r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m(?!s))?(?:(\d{1,9}(?:\.\d{1,9})?)s)?(?:(\d{1,9}(?:\.\d{1,9})?)ms)?",
    re.ASCII,
)
_UNITS_S: Final = (86_400.0, 3600.0, 60.0, 1.0, 0.001)
_REMAINING: Final = re.compile(
    r"(?P<prefix>x-ratelimit|x-rate-limit|ratelimit)-remaining(?P<what>-[a-z-]{1,40})?"
    r"|(?P<anthropic>anthropic-ratelimit-[a-z-]{1,40})-remaining"
)

Headers = Sequence[tuple[str, str]]
"""(Name in lower case, value)."""


def wait_s(headers: Headers, now_unix: float, *, refused: bool) -> float:
    """Return the seconds for which no call is wanted; 0 if none are named.

    `refused`: the call was refused or failed, so `Retry-After` concerns other calls, too. (After a success it is about
    polling.) A reset without a remaining amount then counts as well.
    """
    known = _known(headers)
    if refused:
        for name, found in (
            ("retry-after-ms", _number(known.get("retry-after-ms", "")) / 1000),
            ("x-ms-retry-after-ms", _number(known.get("x-ms-retry-after-ms", "")) / 1000),
            ("retry-after", _retry_after_s(known.get("retry-after", ""), now_unix)),
        ):
            if name in known and found > 0:
                return min(found, MOST_WAIT_S)
    return min(max(_resets_s(known, now_unix, refused=refused), default=0.0), MOST_WAIT_S)


def _known(headers: Headers) -> dict[str, str]:
    """Return the value of each name: lines of a list together, of another field the last line."""
    known: dict[str, str] = {}
    for name, value in headers:
        if len(value) <= MOST_VALUE:
            before = f"{known[name]}, " if name in LISTS and name in known else ""
            known[name] = before + value.strip()
    return known


def _resets_s(known: dict[str, str], now_unix: float, *, refused: bool) -> Iterator[float]:
    """Yield the seconds until each limit of which nothing remains is reset."""
    for name, value in known.items():
        found = _REMAINING.fullmatch(name)
        if found is None or _NUMBER.fullmatch(value) is None or float(value) > 0:
            continue
        if found["anthropic"]:
            yield _at_s(known.get(f"{found['anthropic']}-reset", ""), now_unix)
        else:
            prefix, what = found["prefix"], found["what"] or ""
            for reset in (f"{prefix}-reset{what}", f"{prefix}-reset-after{what}"):
                yield _reset_s(known.get(reset, ""), now_unix)
    yield from _structured(known)
    if refused and not any("remaining" in name for name in known):
        for name in ("x-ratelimit-reset", "x-rate-limit-reset", "ratelimit-reset"):
            yield _reset_s(known.get(name, ""), now_unix)


def _structured(known: dict[str, str]) -> Iterator[float]:
    """Yield the seconds until the limits of the draft's field `ratelimit` are reset."""
    windows = {name: _number(values.get("w", "")) for name, values in _members(known.get("ratelimit-policy", ""))}
    members = _members(known.get("ratelimit", ""))
    for name, values in members:
        if _NUMBER.fullmatch(values.get("r", "")) and not float(values["r"]):
            yield _number(values.get("t", "")) or windows.get(name, 0.0)
    flat = {name: values.get("", "") for name, values in members}
    if _NUMBER.fullmatch(flat.get("remaining", "")) and not float(flat["remaining"]):
        yield _number(flat.get("reset", ""))


def _members(text: str) -> list[tuple[str, dict[str, str]]]:
    """Split a list or dictionary of structured fields into (name, parameters). The value of `name=value` has key ""."""
    members = []
    for member in text.split(","):
        head, *parameters = (part.strip() for part in member.split(";"))
        name, _, value = head.partition("=")
        found = {"": value.strip()}
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            found[key.strip()] = value.strip()
        members.append((name.strip().strip('"'), found))
    return members


def _retry_after_s(text: str, now_unix: float) -> float:
    if _NUMBER.fullmatch(text):
        return float(text)
    return _until_s(_http_date(text), now_unix)


def _reset_s(text: str, now_unix: float) -> float:
    """Return the seconds until a reset: a duration, seconds, Unix seconds or Unix milliseconds."""
    if _NUMBER.fullmatch(text):
        number = float(text)
        if number >= UNIX_S:
            at_s = number / 1000 if number >= UNIX_S * 1000 else number
            return max(0.0, at_s - now_unix)
        return number
    found = _DURATION.fullmatch(text)
    if text and found is not None:
        return sum(float(part) * unit_s for part, unit_s in zip(found.groups(), _UNITS_S, strict=True) if part)
    return _at_s(text, now_unix)


def _at_s(text: str, now_unix: float) -> float:
    """Return the seconds until a time of RFC 3339."""
    try:
        return _until_s(datetime.fromisoformat(text), now_unix)
    except ValueError:
        return 0.0


def _http_date(text: str) -> datetime | None:
    """Return a time in one of the three forms of RFC 9110 (5.6.7). The asctime form has no zone: all are in GMT."""
    try:
        time = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _until_s(time: datetime | None, now_unix: float) -> float:
    """Return the seconds until a time; 0 if it is over, or has no zone."""
    if time is None or time.tzinfo is None:
        return 0.0
    try:
        return max(0.0, time.timestamp() - now_unix)
    except (OverflowError, ValueError):
        return 0.0


def _number(text: str) -> float:
    number = float(text) if _NUMBER.fullmatch(text) else 0.0
    return number if math.isfinite(number) else 0.0
