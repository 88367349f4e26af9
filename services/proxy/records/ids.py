"""Ids that cannot be guessed. The same request has the same id on every replica and after every restart.

There are no keys for callers yet, so a caller may read whatever it can name. Therefore an id is random, or derived from
the request id with a key that only the store has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b

from redis.asyncio import Redis

from shared.bus import identity
from shared.bus.actions import is_known
from shared.bus.connection import ValkeyClock, with_retries
from shared.bus.identity import IdKey
from shared.runtime.units import Seconds

ID_BYTES = 12
DRAWN = 256
KEY_BYTES = 32
OLDER_S: Seconds = 7 * 86_400.0
"""Time for which older ids are looked up in a store from before the key. Batches and their results expire after two
days."""
RETRY_LIMIT_S: Seconds = 10.0


def _drawn() -> Iterator[str]:
    while True:
        bits = os.urandom(ID_BYTES * DRAWN)
        yield from (bits[at : at + ID_BYTES].hex() for at in range(0, len(bits), ID_BYTES))


_ids = _drawn()


def random_id() -> str:
    """Return 96 random bits: the id of an action without a request id. Batches and trajectories put a letter before it.

    Many ids are drawn from the kernel at once, because one draw per id takes 3 % of an action's cost.
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
            return await identity.id_key(redis, os.urandom(KEY_BYTES), OLDER_S)

        return cls(redis, clock, await with_retries(read, what="reading the key of ids", limit_s=30.0))

    @property
    def looks_up(self) -> bool:
        """True while ids of an older version are looked up."""
        return self._clock.unix() < self._key.older_until

    async def of(self, tenant: str, task: str, place: str, request_id: str | None) -> str:
        """Return the id of an action. The same request id in the same place gives the same id, so a repeat finds it.

        `place`: its batch or trajectory, or empty. Takes one more round trip if an older version has used the store.

        Raises:
            Unavailable: the store does not answer (only if older ids are looked up).
        """
        if request_id is None:
            return random_id()
        scope = f"{tenant}\x00{task}\x00{place}\x00{request_id}".encode()
        if self.looks_up:
            older = "r" + blake2b(scope, digest_size=ID_BYTES).hexdigest()
            if await self._is_known(older, place):
                return older
        return "r" + blake2b(scope, digest_size=ID_BYTES, key=self._key.key).hexdigest()

    async def _is_known(self, action: str, place: str) -> bool:
        """Return whether the store has the action, its archived answer, or its name in its trajectory's set."""

        async def read() -> bool:
            return await is_known(self._redis, action, place)

        return await with_retries(read, what="looking for an older id", limit_s=RETRY_LIMIT_S)
