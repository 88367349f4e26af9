"""Pages of model services in Valkey: the newest of each node.

A page is a view: no decision reads it. The leader has nodes' reports (`ServicesChanged`).
"""

from __future__ import annotations

from typing import Final

import msgspec
from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.messages.model_services import ServingPage
from shared.runtime import log
from shared.runtime.units import Seconds
from shared.runtime.validation import UNREADABLE

_log = log.get(__name__)
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(ServingPage).decode

FRESH_S: Final[Seconds] = 30.0
"""Age above which a page is not shown: its node is gone, or silent."""
KEPT_S: Final[Seconds] = 3600.0
"""Age above which a page is deleted."""


async def publish_page(redis: Redis, page: ServingPage) -> None:
    """Store the page of a node."""
    await command(redis, "HSET", keys.SERVING, page.node, _encode(page))


async def remove_page(redis: Redis, node: str) -> None:
    """Remove the page of a node that stops."""
    await command(redis, "HDEL", keys.SERVING, node)


async def read_pages(redis: Redis, now: Seconds) -> list[ServingPage]:
    """Return the fresh pages, by node. Deletes those of nodes that are long gone."""
    flat = await command(redis, "HGETALL", keys.SERVING)
    pages: list[ServingPage] = []
    gone: list[bytes] = []
    for node, raw in zip(flat[::2], flat[1::2], strict=True):
        try:
            page = _decode(raw)
        except UNREADABLE as error:
            _log.warning("page_unreadable", node=node.decode(errors="replace"), error=str(error))
            continue
        if now - page.at <= FRESH_S:
            pages.append(page)
        elif now - page.at > KEPT_S:
            gone.append(node)
    if gone:
        await command(redis, "HDEL", keys.SERVING, *gone)
    return sorted(pages, key=lambda page: page.node)
