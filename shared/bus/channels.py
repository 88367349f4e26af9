"""Channels of Valkey: messages that are not stored. A message without a subscriber is lost.

| channel | publisher | subscriber | message |
| --- | --- | --- | --- |
| `outcomes:direct` | node | leader | an outcome, before it is stored (`shared.node.direct_report`) |
| `confirmed:<node>:<incarnation>` | leader | node | `Confirmed`: what follows from that outcome is stored |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from shared.bus.connection import TRANSIENT, command
from shared.bus.wire import PipelinedRedis, Wire
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)

DIRECT_OUTCOMES: Final = "outcomes:direct"
CHECK_S: Final[Seconds] = 10.0
"""Time between two checks of a subscribed connection. One that does not answer is replaced (`socket_timeout`)."""
AGAIN_S: Final[Seconds] = 0.5
"""Pause after a connection has ended."""
REFUSED_S: Final[Seconds] = 60.0
"""Pause after the server has refused a channel. A user of its access control lists has none by default."""


def confirmations(node: str, incarnation: str) -> str:
    """Return the channel on which the leader confirms a node's direct outcomes."""
    return f"confirmed:{node}:{incarnation}"


async def publish(redis: Redis, channel: str, message: bytes) -> int:
    """Publish a message, and return the number of its receivers."""
    return int(await command(redis, "PUBLISH", channel, message))


def post(redis: Redis, channel: str, message: bytes) -> None:
    """Publish a message without waiting. It is lost if the connection is closed."""
    cast("PipelinedRedis", redis).post("PUBLISH", channel, message)


async def follow(redis: Redis, channel: str, receive: Callable[[bytes], Any]) -> None:
    """Call a function with each message of a channel, forever. Messages are lost while the connection is away.

    Args:
        redis: a client that serves nothing else.
        channel: name.
        receive: must not fail.
    """
    pipelined = cast("PipelinedRedis", redis)
    while True:
        try:
            await _followed(await pipelined.subscribed(channel, receive))
        except TRANSIENT as error:
            _log.warning("valkey_unavailable", what=f"subscribing to {channel}", error=str(error))
        except ResponseError as error:
            _log.warning("channel_refused", channel=channel, error=str(error), again_s=REFUSED_S)
            await asyncio.sleep(REFUSED_S)
        await asyncio.sleep(AGAIN_S)


async def _followed(wire: Wire) -> None:
    """Wait until a subscribed connection has ended. It is closed if the caller is cancelled: no receiver."""
    try:
        while not wire.lost.is_set():
            try:
                async with asyncio.timeout(CHECK_S):
                    await wire.lost.wait()
            except TimeoutError:
                await wire.send(("PING",))
    finally:
        wire.close()
