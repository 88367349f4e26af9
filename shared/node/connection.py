"""Connection of a node to the mesh: its streams, its identity, its outbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from redis.asyncio import Redis

from shared.bus import functions
from shared.bus.connection import connect, with_retries
from shared.node.direct_report import DirectReport
from shared.node.identity import NodeIdentity, new_identity
from shared.node.outbox import Outbox
from shared.runtime.units import Seconds

START_S: Seconds = 30.0
"""Time of retries against Valkey at the start. After it the process ends and its supervisor restarts it."""


class NodeConnection(NamedTuple):
    """Identity, connections and outbox of a node."""

    identity: NodeIdentity
    redis: Redis
    reader: Redis
    """Serves only blocking reads; `redis` writes."""
    outbox: Outbox
    direct: DirectReport | None = None


@asynccontextmanager
async def open_node(url: str, *, name: str, node: str, node_class: str = "default") -> AsyncIterator[NodeConnection]:
    """Connect a manager that starts now.

    Args:
        url: of Valkey.
        name: of the service, for CLIENT LIST.
        node: its name; unique in the mesh.
        node_class: its class.

    Raises:
        Unavailable: Valkey did not answer in `START_S`.
    """
    async with (
        connect(url, name=name) as redis,
        connect(url, name=f"{name}-reader") as reader,
        connect(url, name=f"{name}-confirmations") as confirmations,
    ):
        await with_retries(lambda: functions.load(redis), what="loading functions", limit_s=START_S)
        identity = await new_identity(redis, node, node_class, limit_s=START_S)
        direct = DirectReport(redis, confirmations, identity)
        yield NodeConnection(identity, redis, reader, Outbox(redis, direct), direct)
