"""Bulk calls: requests in chunks that the door takes, and what became of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from shared.api.requests import BulkReceipt, Rejection, RewardRequest
from shared.runtime.errors import PROBLEM_TYPE, Overloaded, Unavailable

MOST_LINES = 512
"""Of one call: the door resolves so many at a turn."""
MOST_BYTES = 4 << 20
"""Of one call; a larger single line travels alone."""

_encoder = msgspec.json.Encoder()
_PASSING = frozenset(PROBLEM_TYPE + error.slug for error in (Overloaded, Unavailable))


def chunks(lines: Sequence[bytes], *, most_lines: int = MOST_LINES, most_bytes: int = MOST_BYTES) -> Iterator[slice]:
    """Slices of `lines` in order, each within both bounds, or one line that alone is longer. O(n)."""
    start = size = 0
    for at, line in enumerate(lines):
        length = len(line) + 1
        if at > start and (at - start == most_lines or size + length > most_bytes):
            yield slice(start, at)
            start, size = at, 0
        size += length
    if start < len(lines):
        yield slice(start, len(lines))


def encode(requests: Sequence[RewardRequest]) -> list[bytes]:
    """One JSON text a request."""
    return [_encoder.encode(request) for request in requests]


def passes(rejection: Rejection) -> bool:
    """Whether the line was refused for want of room or of a part: it may be sent again."""
    return rejection.problem.get("type") in _PASSING


def shifted(receipt: BulkReceipt, places: Sequence[int]) -> list[Rejection]:
    """A chunk's rejections with `line` counted in the whole from 1; `places[i]` is where line i+1 stands, from 0."""
    return [msgspec.structs.replace(each, line=places[each.line - 1] + 1) for each in receipt.rejected]
