"""Replies of the hot routes, and how they are sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

import msgspec
from starlette.types import Scope, Send

from shared.runtime.app import PROBLEM_JSON
from shared.runtime.errors import PROBLEM_TYPE, TreadleError
from shared.runtime.whole_response import sender_of

_encoder = msgspec.json.Encoder()
JSON_TYPE = b"application/json"


class Reply(NamedTuple):
    """A complete reply."""

    status: int
    body: bytes
    content_type: bytes = JSON_TYPE
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Streamed(NamedTuple):
    """A reply of status 200. Its headers leave at once, and its body follows in parts."""

    parts: AsyncIterator[bytes]
    """Ends early, without an error, if the caller has gone."""
    content_type: bytes = JSON_TYPE
    headers: tuple[tuple[bytes, bytes], ...] = ()


def headers_of(reply: Reply | Streamed) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of a reply, without its length."""
    return ((b"content-type", reply.content_type), *reply.headers)


async def send_reply(reply: Reply | Streamed, scope: Scope, send: Send) -> None:
    """Send the reply. A body in parts has no length header, so the server sends it in chunks."""
    headers = headers_of(reply)
    if isinstance(reply, Reply):
        whole = sender_of(scope)
        if whole is None or not whole(reply.status, headers, reply.body):
            length = (b"content-length", b"%d" % len(reply.body))
            await send({"type": "http.response.start", "status": reply.status, "headers": [*headers, length]})
            await send({"type": "http.response.body", "body": reply.body})
        return
    await send({"type": "http.response.start", "status": 200, "headers": list(headers)})
    async for part in reply.parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def problem_reply(error: TreadleError) -> Reply:
    """Return an error as problem+json."""
    headers = tuple((name.encode(), value.encode()) for name, value in error.headers().items())
    return Reply(error.status, _encoder.encode(error.problem()), PROBLEM_JSON.encode(), headers)


def not_allowed(methods: Iterable[str]) -> Reply:
    """Return the error for another method than these."""
    allowed = ", ".join(sorted(methods))
    document = {
        "type": f"{PROBLEM_TYPE}http-405",
        "title": "Method Not Allowed",
        "status": 405,
        "detail": f"use {allowed}",
    }
    return Reply(405, _encoder.encode(document), PROBLEM_JSON.encode(), ((b"allow", allowed.encode()),))
