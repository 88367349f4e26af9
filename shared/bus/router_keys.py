"""Keys of trajectories' own model addresses (`/r/{trajectory}/v1`).

A key is derived from the store's key of ids, so it is not stored, and every process of the mesh can make it.
"""

from __future__ import annotations

import hmac
import os
from base64 import urlsafe_b64encode
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
from redis.asyncio import Redis

from shared.bus import identity, keys
from shared.bus.connection import command, with_retries
from shared.bus.identity import IdKey
from shared.runtime.units import Seconds

PREFIX: Final = "tk-"
"""First characters of each key, for scanners of leaked secrets."""
_PURPOSE: Final = b"model key"
_BYTES: Final = 32
_OLDER_S: Final[Seconds] = 7 * 86_400.0


class ModelKeys:
    """Keys of all trajectories of a mesh."""

    def __init__(self, key: bytes) -> None:
        self._key = key[:64]

    @classmethod
    async def load(cls, redis: Redis) -> ModelKeys:
        """Read the store's key, or create it."""

        async def read() -> IdKey:
            return await identity.id_key(redis, os.urandom(_BYTES), _OLDER_S)

        return cls((await with_retries(read, what="reading the key of ids", limit_s=30.0)).key)

    def of(self, trajectory: str) -> str:
        """Return the key of a trajectory."""
        digest = blake2b(trajectory.encode(), digest_size=24, key=self._key, person=_PURPOSE).digest()
        return PREFIX + urlsafe_b64encode(digest).decode()

    def opens(self, trajectory: str, given: str) -> bool:
        """Return whether a key is that of a trajectory."""
        return hmac.compare_digest(self.of(trajectory).encode(), given.encode("utf-8", "surrogatepass"))


class ModelTrajectory(NamedTuple):
    """What the router needs of an opened trajectory."""

    tenant: str
    group: str
    is_open: bool
    sampling: dict[str, object]
    """Fields that a call gets where it has none."""
    records_tokens: bool = False


async def read_model_trajectory(redis: Redis, trajectory: str) -> ModelTrajectory | None:
    """Return an opened trajectory; None: there is none (any more)."""
    names = ("tenant", "group", "state", "sampling", "record")
    tenant, group, state, sampling, record = await command(redis, "HMGET", keys.trajectory(trajectory), *names)
    if tenant is None:
        return None
    fields = msgspec.json.decode(sampling, type=dict[str, object]) if sampling else {}
    return ModelTrajectory(tenant.decode(), (group or b"").decode(), state == b"open", fields, record == b"tokens")
