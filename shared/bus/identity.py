"""The identity of a mesh: a random id in its store, written once by the first process that needs it.

Two meshes on one host may have nodes of the same name. Their stores differ, and therefore their ids.
"""

from __future__ import annotations

import secrets
from typing import Final

from redis.asyncio import Redis

from shared.bus import functions

MESH: Final = "mesh"
"""The id's key in Valkey. The function library writes it."""


async def mesh_identity(redis: Redis) -> str:
    """Return the store's id: 16 hexadecimal digits. Safe to repeat; concurrent callers get the same one.

    It is written even if the store's memory is full, because a node that starts then frees memory.
    The function library must be loaded.
    """
    identity: bytes = await functions.call(redis, "mesh_identity", secrets.token_hex(8))
    return identity.decode()
