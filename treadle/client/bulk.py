"""Bulk calls: requests in chunks that the proxy takes, retried while it is full."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from treadle.client.answers import BulkReceipt, Rejection
from treadle.client.errors import BadRequest, Overloaded, Unavailable, Unexpected, slug_of
from treadle.client.requests import RewardRequest
from treadle.client.retry import RetryState
from treadle.client.transport import NDJSON, Transport, encoded

PATH = "/v1/rewards/bulk"
MAX_LINES = 512
"""Lines of one call: the proxy resolves this many at once."""
MAX_BYTES = 4 << 20
"""Bytes of one call. A larger line is sent alone."""


def chunks(lines: Sequence[bytes], *, max_lines: int = MAX_LINES, max_bytes: int = MAX_BYTES) -> Iterator[slice]:
    """Slices of `lines` in order, each within both bounds, or one line that alone is longer. O(n)."""
    start = size = 0
    for at, line in enumerate(lines):
        length = len(line) + 1
        if at > start and (at - start == max_lines or size + length > max_bytes):
            yield slice(start, at)
            start, size = at, 0
        size += length
    if start < len(lines):
        yield slice(start, len(lines))


def encode(requests: Sequence[RewardRequest]) -> list[bytes]:
    """Return one JSON text a request.

    Raises:
        BadRequest: a request has no `request_id`, so it could not be sent again; or JSON has no such value.
    """
    for place, request in enumerate(requests):
        if not request.request_id:
            raise BadRequest(f"requests[{place}] has no request_id: give it one that is unique in the batch")
    return [encoded(request, f"request {request.request_id!r}") for request in requests]


def check_unique(requests: Sequence[RewardRequest]) -> None:
    """Check that a batch has each `request_id` once, because the mesh answers each once.

    Raises:
        BadRequest: two requests have the same.
    """
    places: dict[str | None, int] = {}
    for place, request in enumerate(requests):
        first = places.setdefault(request.request_id, place)
        if first != place:
            what = f"requests[{first}] and requests[{place}] have the same request_id {request.request_id!r}"
            raise BadRequest(f"{what}: give each its own, or none; nothing was submitted")


async def submit_all(
    transport: Transport, batch: str, lines: Sequence[bytes], on_accepted: Callable[[int], None] | None
) -> BulkReceipt:
    """Submit encoded requests to a batch, in chunks; see `AsyncTreadle.submit`."""
    accepted = repeated = 0
    rejected: list[Rejection] = []
    for chunk in chunks(lines):
        receipt = await submit(transport, batch, lines, range(*chunk.indices(len(lines))))
        if on_accepted is not None:
            on_accepted(receipt.accepted + receipt.repeated)
        accepted, repeated = accepted + receipt.accepted, repeated + receipt.repeated
        rejected += receipt.rejected
    return BulkReceipt(accepted=accepted, repeated=repeated, rejected=rejected)


async def submit(transport: Transport, batch: str, lines: Sequence[bytes], places: Sequence[int]) -> BulkReceipt:
    """Submit one chunk to a batch. Lines rejected because the mesh is full are sent again; see `AsyncTreadle.submit`.

    Args:
        places: places of the chunk's lines in `lines`.
    """
    accepted = repeated = 0
    rejected: list[Rejection] = []
    retries = RetryState(transport.retry_policy, f"submitting to {transport.url}", transport.rng)
    while True:
        body = b"\n".join(lines[place] for place in places)
        reply = await transport.send("POST", PATH, body, NDJSON, {"batch": batch})
        receipt = transport.decoded(BulkReceipt, reply, PATH)
        accepted, repeated = accepted + receipt.accepted, repeated + receipt.repeated
        rejections = renumbered(receipt, places)
        rejected += [each for each in rejections if not is_transient(each)]
        again = [each for each in rejections if is_transient(each)]
        if not again:
            return BulkReceipt(accepted=accepted, repeated=repeated, rejected=rejected)
        if len(again) < len(places):
            retries.reset()
        places = [each.line - 1 for each in again]
        problem = again[-1].problem
        await retries.backoff(Overloaded(str(problem.get("detail")), problem))


def is_transient(rejection: Rejection) -> bool:
    """Return whether the mesh was full or a part of it was away, so that the request may be sent again."""
    return slug_of(rejection.problem) in (Overloaded.slug, Unavailable.slug)


def renumbered(receipt: BulkReceipt, places: Sequence[int]) -> list[Rejection]:
    """Rejections of a chunk with `line` counted in the whole, from 1.

    Args:
        places: place of each line of the chunk in the whole, from 0.
    Raises:
        Unexpected: the receipt rejects a line that was not sent.
    """
    if any(not 1 <= each.line <= len(places) for each in receipt.rejected):
        raise Unexpected(f"the receipt rejects a line that is not among the {len(places)} sent")
    return [msgspec.structs.replace(each, line=places[each.line - 1] + 1) for each in receipt.rejected]
