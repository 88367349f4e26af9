"""Model services in Valkey: what REST has declared, and the newest page of each node.

Declarations are kept without a limit in time. A counter is raised with each change, in the same function. So a GPU
manager that looks for changes reads one number. A page is a view: the leader has nodes' reports (`ServicesChanged`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import call
from shared.messages.model_services import ServingPage
from shared.model_services.references import Declaration
from shared.runtime import log
from shared.runtime.units import Seconds
from shared.runtime.validation import UNREADABLE

_log = log.get(__name__)
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(ServingPage).decode
_declaration: Final = msgspec.json.Decoder(Declaration).decode

FRESH_S: Final[Seconds] = 30.0
"""Age above which a page is not shown: its node is gone, or silent. Lease of the addresses on it."""
KEPT_S: Final[Seconds] = 3600.0
"""Age above which a page is deleted."""


class Declared(NamedTuple):
    """A service that REST has declared."""

    change: int
    """Number of the change that declared it."""
    declaration: Declaration | None
    """None: this version cannot read it."""


class DeclaredSet(NamedTuple):
    """All services that REST has declared."""

    change: int
    """Number of the last change that is certainly among them."""
    services: Mapping[str, Declared]


async def declare_service(redis: Redis, name: str, declaration: Declaration | None, *, most: int) -> int:
    """Declare a service, or remove its declaration (None). Nodes apply it at their next heartbeat.

    Returns:
        Number of the change; 0: there are `most` declared services, or there is none to remove.
    """
    stored = b"" if declaration is None else _encode(declaration)
    touched = (keys.SERVICES_DECLARED, keys.SERVICES_CHANGES)
    return int(await call(redis, "declare_service_v1", touched, name, stored, most))


async def count_service_changes(redis: Redis) -> int:
    """Return the number of changes so far."""
    return int(await command(redis, "GET", keys.SERVICES_CHANGES) or 0)


async def read_declared(redis: Redis) -> DeclaredSet:
    """Read all declarations."""
    change = await count_service_changes(redis)  # before the hash, so that no change is missed
    flat = await command(redis, "HGETALL", keys.SERVICES_DECLARED)
    services = {name.decode(): _read_declared(raw) for name, raw in zip(flat[::2], flat[1::2], strict=True)}
    return DeclaredSet(change, services)


def _read_declared(raw: bytes) -> Declared:
    change, _, content = raw.partition(b" ")
    try:
        return Declared(int(change), _declaration(content))
    except UNREADABLE as error:
        _log.warning("declaration_unreadable", error=str(error))
        return Declared(int(change), None)


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
