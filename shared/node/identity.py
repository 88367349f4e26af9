"""Identity of a node's manager: one incarnation of one node."""

from __future__ import annotations

import uuid
from functools import partial
from typing import NamedTuple

from redis.asyncio import Redis

from shared.bus.connection import with_retries
from shared.bus.nodes import next_generation
from shared.runtime.units import Seconds


class NodeIdentity(NamedTuple):
    """A node, and one start of its manager."""

    node: str
    """Unique in the mesh."""
    incarnation: str
    node_class: str = "default"
    generation: int = 0
    """Number of this start; see `Hello.generation`."""


async def new_identity(redis: Redis, node: str, node_class: str, *, limit_s: Seconds) -> NodeIdentity:
    """Return the identity of a manager that starts now.

    Raises:
        Unavailable: Valkey did not answer in `limit_s`.
    """
    count = partial(next_generation, redis, node)
    generation = await with_retries(count, what="counting this start", limit_s=limit_s)
    return NodeIdentity(node, uuid.uuid4().hex[:12], node_class, generation)
