"""Reports of nodes: the stream `nodes`, and a hash with the newest hello of each node.

Law: the hash has the hello of each node that has published one within `SILENT_KEPT_S`, or that the leader uses, and no
Bye since; of at most `MOST_NODES` nodes, those that published last. An incarnation does not replace the hello of a
later one (tests/shared/bus/test_nodes.py).

The stream is bounded, and a hello is published with every fifteenth heartbeat only: above 270 nodes the stream has lost
some. The functions are in `library/nodes.lua`; all are atomic and safe to repeat.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import call, publish
from shared.bus.keys import Role
from shared.messages.nodes import NODES, Bye, Heartbeat, Hello
from shared.runtime import log
from shared.runtime.units import Epoch, Seconds
from shared.runtime.validation import UNREADABLE

_log = log.get(__name__)

MOST_NODES: Final = 4096
"""Most hellos in the hash. Beyond it, the longest silent node leaves."""
SILENT_KEPT_S: Final[Seconds] = 3600.0
"""Time after its last hello until a silent node leaves the hash. If it comes back later, it publishes a hello."""
READ_AT_ONCE: Final = 512


class StoredHello(NamedTuple):
    """Newest hello of a node."""

    hello: Hello
    at: Seconds
    """Time of its last publication, Unix seconds on Valkey's clock."""

    @property
    def entry(self) -> str:
        """Id of a stream entry of that time."""
        return f"{round(self.at * 1000)}-0"


async def next_generation(redis: Redis, node: str) -> int:
    """Return the generation of a starting manager of this node: higher than those of all earlier ones."""
    return int(await call(redis, "next_generation_v1", (keys.GENERATIONS, keys.HELLOS), node))


async def publish_hello(redis: Redis, hello: Hello) -> bool:
    """Publish and store a hello. False: neither, because a later manager of this node has published one."""
    arguments = (NODES.maxlen, MOST_NODES, hello.node, hello.generation, NODES.encode(hello))
    return bool(await call(redis, "publish_hello_v1", _KEYS, *arguments) == 1)


async def publish_heartbeat(redis: Redis, beat: Heartbeat) -> None:
    """Publish a heartbeat."""
    await publish(redis, NODES.name, NODES.maxlen or 0, [NODES.encode(beat)])


async def publish_bye(redis: Redis, bye: Bye) -> None:
    """Publish a Bye, and remove the hello of its incarnation."""
    await call(redis, "publish_bye_v1", _KEYS, NODES.maxlen, bye.node, bye.incarnation, NODES.encode(bye))


async def read_hellos(redis: Redis) -> list[StoredHello]:
    """Return the newest hello of each node, the longest silent first. One round trip per `READ_AT_ONCE` of them."""
    flat = await command(redis, "ZRANGE", keys.HELLOS_AT, 0, -1, "WITHSCORES")
    found: list[StoredHello] = []
    for start in range(0, len(flat), 2 * READ_AT_ONCE):
        chunk = flat[start : start + 2 * READ_AT_ONCE]
        packed = await command(redis, "HMGET", keys.HELLOS, *chunk[::2])
        found += [
            StoredHello(hello, float(at_ms) / 1000)
            for hello, at_ms in zip(_decoded(packed), chunk[1::2], strict=True)
            if hello is not None
        ]
    return found


async def expire_hellos(
    redis: Redis, epoch: Epoch, present: Container[str], silent_s: Seconds = SILENT_KEPT_S
) -> list[str]:
    """Remove the hellos of absent nodes that have published none for `silent_s`; return their names.

    `present`: nodes that the leader uses. Their hellos stay, because the next leader needs them: after a long outage of
    Valkey a node's heartbeats come before its next hello.

    Raises:
        Deposed: this leader's epoch is over; nothing was removed.
    """
    touched = (keys.epoch(Role.DISPATCHER), keys.HELLOS, keys.HELLOS_AT)
    seconds, _ = await command(redis, "TIME")
    silent_ms = round(silent_s * 1000)
    oldest = await command(redis, "ZRANGEBYSCORE", keys.HELLOS_AT, "-inf", (int(seconds) + 1) * 1000 - silent_ms)
    absent = [name for name in oldest if name.decode() not in present]
    if not absent:
        return []
    removed = await call(redis, "expire_hellos_v1", touched, epoch, silent_ms, *absent)
    return [name.decode() for name in removed]


_KEYS: Final = (keys.NODES, keys.HELLOS, keys.HELLOS_AT)


def _decoded(packed: Sequence[Any]) -> list[Hello | None]:
    """Decode hellos. None: it was removed meanwhile, or another version has written it."""
    hellos: list[Hello | None] = []
    for raw in packed:
        try:
            message = NODES.decode(raw) if raw is not None else None
        except UNREADABLE as error:
            _log.error("hello_unreadable", error=str(error))
            message = None
        hellos.append(message if isinstance(message, Hello) else None)
    return hellos
