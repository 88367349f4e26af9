"""The identity of a mesh, and the key of its ids: random values in its store, written once.

Two meshes on one host may have nodes of the same name. Their stores differ, and therefore their identities.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.functions import call
from shared.bus.keys import Role
from shared.runtime.units import Seconds


class IdKey(NamedTuple):
    """Key of derived ids."""

    key: bytes
    older_until: float
    """Until this time, ids that an older version made without a key are looked up. Unix seconds; 0 in a fresh store."""


async def mesh_identity(redis: Redis) -> str:
    """Return the store's id: 16 hexadecimal digits. Safe to repeat; concurrent callers get the same one.

    It is written even if the store's memory is full, because a node that starts then frees memory.
    The function library must be loaded.
    """
    identity: bytes = await call(redis, "mesh_identity_v2", (keys.MESH,), secrets.token_hex(8))
    return identity.decode()


async def id_key(redis: Redis, candidate: bytes, window_s: Seconds) -> IdKey:
    """Return the store's key of derived ids. If it has none, `candidate` is stored first."""
    touched = (keys.IDS, keys.epoch(Role.DISPATCHER))
    key, older_until_ms = await call(redis, "id_key_v2", touched, candidate, round(window_s * 1000))
    return IdKey(key, int(older_until_ms) / 1000)
