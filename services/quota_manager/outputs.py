"""Output of a call, as it is sent and stored: JSON of bounded size. Pure.

Headers are an allow-list: what an upstream says about its limits and its content, and no cookie, credential or address.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from services.quota_manager.outgoing.calls import OutgoingAnswer
from shared.kinds.plain import check_plain
from shared.runtime.validation import UNREADABLE

SHOWN_HEADERS: Final = frozenset(
    {"content-type", "date", "etag", "last-modified", "retry-after", "request-id", "x-request-id",
     "ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"}
)  # fmt: skip
SHOWN_PREFIXES: Final = ("x-ratelimit-", "anthropic-ratelimit-")
MOST_HEADERS: Final = 32
MOST_HEADER: Final = 256
"""Characters of one header's value."""
_ROOM: Final = 16 << 10
"""Bytes for everything of an output beside the body."""
_encoder: Final = msgspec.json.Encoder()


class InvalidDocuments(ValueError):
    """The answer of a retrieval server has another shape. The message says which."""


class _Document(msgspec.Struct):
    contents: str


class _Scored(msgspec.Struct):
    document: _Document
    score: float | None


class _ScoredResults(msgspec.Struct):
    result: list[list[_Scored]]


class _Results(msgspec.Struct):
    result: list[list[_Document]]


class _Whole(msgspec.Struct):
    result: msgspec.Raw


_with_scores: Final = msgspec.json.Decoder(_ScoredResults)
_without_scores: Final = msgspec.json.Decoder(_Results)
_whole: Final = msgspec.json.Decoder(_Whole)


def shown_headers(headers: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return the headers that an answer shows, in lower case."""
    shown: dict[str, str] = {}
    for name, value in headers:
        if name in SHOWN_HEADERS or name.startswith(SHOWN_PREFIXES):
            shown[name[:MOST_HEADER]] = value[:MOST_HEADER]
        if len(shown) == MOST_HEADERS:
            break
    return shown


def http_output(answer: OutgoingAnswer, limit: int, unsettled: Sequence[str] = ()) -> bytes:
    """Return status, headers and body: `json` if it is JSON that fits and that every reader accepts, else `text`.

    `unsettled`: quotas whose used amount was not found in the answer; they are in the output if there are any.
    """
    output: dict[str, Any] = {"status": answer.status, "headers": shown_headers(answer.headers)}
    if unsettled:
        output["unsettled"] = unsettled
    if not answer.body:
        return _encoder.encode(output)
    if len(answer.body) + _ROOM <= limit and _is_plain_json(answer.body):
        return _encoder.encode({**output, "json": msgspec.Raw(answer.body)})
    text, room = answer.body.decode("utf-8", "replace"), limit
    encoded = _encoder.encode({**output, "text": text})
    while len(encoded) > limit and room > 1:
        room //= 2
        encoded = _encoder.encode({**output, "text": text[:room], "truncated": True})
    return encoded


def _is_plain_json(body: bytes) -> bool:
    try:
        check_plain(msgspec.json.decode(body), "the answer")
    except (ValueError, *UNREADABLE):
        return False
    return True


def documents_output(body: bytes, *, queries: int, scores: bool, limit: int) -> bytes:
    """Return the documents of a retrieval server, as it sent them, after a check of their shape.

    Args:
        body: of its answer.
        queries: number of queries, each of which has one list.
        scores: documents come as {"document": ..., "score": ...}.
        limit: most bytes.

    Raises:
        InvalidDocuments: another shape, or more bytes. Nothing is cut: a trainer would score the rest.
    """
    if len(body) > limit:
        raise InvalidDocuments(f"the documents have {len(body)} bytes, and a result may have {limit}")
    form = '{"document": {"contents": text}, "score": number}' if scores else '{"contents": text}'
    try:
        found = (_with_scores if scores else _without_scores).decode(body)
        check_plain(msgspec.json.decode(body), "the answer")
    except (ValueError, *UNREADABLE) as error:
        raise InvalidDocuments(f'the answer is not {{"result": [[{form}, ...], ...]}}: {str(error)[:200]}') from error
    if len(found.result) != queries:
        raise InvalidDocuments(f"the answer has {len(found.result)} lists of documents for {queries} queries")
    return _encoder.encode(_whole.decode(body))
