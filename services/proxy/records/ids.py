"""Ids: nobody can guess one, and the same request has the same id on every replica, after every restart.

A caller without keys may read whatever it can name. So an id is random, or derived from the request id with a key that
only the store holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b

from redis.asyncio import Redis

from shared.bus import functions
from shared.bus.connection import ValkeyClock, command, patiently
from shared.bus.functions import IdKey
from shared.runtime.units import Seconds

ID_BYTES = 12
DRAWN = 256
KEY_BYTES = 32
OLDER_S: Seconds = 7 * 86_400.0
"""A store from before the key: its ids are looked for so long. Batches and their results live for two days."""
PATIENCE_S: Seconds = 10.0


def _drawn() -> Iterator[str]:
    while True:
        bits = os.urandom(ID_BYTES * DRAWN)
        yield from (bits[at : at + ID_BYTES].hex() for at in range(0, len(bits), ID_BYTES))


_ids = _drawn()


def random_id() -> str:
    """Of an action without a request id, and behind a letter of batches and trajectories: 96 random bits.

    Drawn from the kernel many at a time: one at a time is 3 % of an action.
    """
    return next(_ids)


class Ids:
    """Ids of this store."""

    def __init__(self, redis: Redis, clock: ValkeyClock, key: IdKey) -> None:
        self._redis = redis
        self._clock = clock
        self._key = key

    @classmethod
    async def load(cls, redis: Redis, clock: ValkeyClock) -> Ids:
        """Read the store's key, or create it."""

        async def read() -> IdKey:
            return await functions.id_key(redis, os.urandom(KEY_BYTES), OLDER_S)

        return cls(redis, clock, await patiently(read, what="reading the key of ids", patience_s=30.0))

    async def of(self, tenant: str, task: str, place: str, request_id: str | None) -> str:
        """The id of an action; the same for the same request id in the same place, so that a repeat finds it.

        `place`: its batch or trajectory, or empty. One round trip more where an older version has used the store.

        Raises:
            Unavailable: the store does not answer (older ids alone need it).
        """
        if request_id is None:
            return random_id()
        scope = f"{tenant}\x00{task}\x00{place}\x00{request_id}".encode()
        if self._clock.unix() < self._key.older_until:
            older = "r" + blake2b(scope, digest_size=ID_BYTES).hexdigest()
            if await self._is_known(older, place):
                return older
        return "r" + blake2b(scope, digest_size=ID_BYTES, key=self._key.key).hexdigest()

    async def _is_known(self, action: str, place: str) -> bool:
        """An action, or one whose answer is archived, or so old that only its trajectory's set has it."""

        async def read() -> bool:
            key = f"action:{action}"
            if await command(self._redis, "EXISTS", key):
                return True
            if not place:
                return False
            if await command(self._redis, "HEXISTS", f"archived:{place}", action):
                return True
            return bool(await command(self._redis, "SISMEMBER", f"acted:{place}", key))

        return await patiently(read, what="looking for an older id", patience_s=PATIENCE_S)
