"""Bulk calls: requests in chunks that the proxy takes, and what became of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from treadle.client.answers import BulkReceipt, Rejection
from treadle.client.errors import Overloaded, Unavailable, slug_of
from treadle.client.requests import RewardRequest

MOST_LINES = 512
"""Of one call: the proxy resolves so many at a turn."""
MOST_BYTES = 4 << 20
"""Of one call; a larger single line travels alone."""

_encoder = msgspec.json.Encoder()


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
    """Return one JSON text a request."""
    return [_encoder.encode(request) for request in requests]


def is_transient(rejection: Rejection) -> bool:
    """Return whether the request was rejected because the mesh was full or a part was away: it may be sent again."""
    return slug_of(rejection.problem) in (Overloaded.slug, Unavailable.slug)


def shifted(receipt: BulkReceipt, places: Sequence[int]) -> list[Rejection]:
    """A chunk's rejections with `line` counted in the whole from 1; `places[i]` is the place of line i+1, from 0."""
    return [msgspec.structs.replace(each, line=places[each.line - 1] + 1) for each in receipt.rejected]
