"""One call of one server, with its limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.quota_manager.outgoing.calls import OutgoingAnswer, OutgoingCall
from services.quota_manager.outgoing.client import Outgoing, open_outgoing
from services.quota_manager.secrets import Secrets
from tests.services.quota_manager.outgoing.upstreams import Handler, Names, serving

MEBIBYTE = 1 << 20
NAMES = {"a.test": [["127.0.0.1"]], "elsewhere.test": [["127.0.0.1"]]}


@asynccontextmanager
async def client() -> AsyncIterator[Outgoing]:
    async with open_outgoing(secrets=Secrets(), resolve=Names(NAMES), allow_addresses=["127.0.0.0/8"]) as outgoing:
        yield outgoing


async def called(
    handler: Handler, *, timeout_s: float = 5.0, most_bytes: int = MEBIBYTE, method: str = "GET", **more: object
) -> OutgoingAnswer:
    async with serving(handler) as server, client() as outgoing:
        url = f"http://a.test:{server.port}/"
        call = OutgoingCall(method, url, timeout_s=timeout_s, most_bytes=most_bytes, **more)  # type: ignore[arg-type]
        return await outgoing.call(call)
