"""The identity of a mesh: a random id that its store holds, written once by whoever needs it first.

Two meshes on one host may have nodes of the same name. Their stores differ, so their ids do.
"""

from __future__ import annotations

import secrets
from typing import Final

from redis.asyncio import Redis

from shared.bus import functions

MESH: Final = "mesh"
"""The key; the function library writes it."""


async def mesh_identity(redis: Redis) -> str:
    """Return the store's id: 16 hexadecimal digits. Safe to repeat; concurrent callers get the same one.

    It is written although the store's memory is full, because a node that starts then frees memory.
    The function library has been loaded before.
    """
    identity: bytes = await functions.call(redis, "mesh_identity", secrets.token_hex(8))
    return identity.decode()
