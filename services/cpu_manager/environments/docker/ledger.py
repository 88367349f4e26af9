"""The ledger of pulled images in the mesh's store: one hash for each engine and node, image -> time of its last use."""

from __future__ import annotations

from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from shared.bus.connection import command
from shared.runtime import log

_log = log.get(__name__)

PULLED: Final = "pulled:"


class StoreLedger:
    """A `Ledger`. An engine's own id is part of the key: a node that moves to another host owns nothing there."""

    def __init__(self, redis: Redis, node: str, engine: str) -> None:
        self._redis = redis
        self._key = f"{PULLED}{engine}:{node}"

    async def read(self) -> dict[str, float]:
        """Empty where the store does not answer: then nothing of an earlier life is removed."""
        flat = await self._try("HGETALL", self._key) or []
        return {name.decode(): float(used) for name, used in zip(flat[::2], flat[1::2], strict=True)}

    async def note(self, image: str, used_at: float) -> None:
        await self._try("HSET", self._key, image, f"{used_at:.0f}")

    async def drop(self, image: str) -> None:
        await self._try("HDEL", self._key, image)

    async def _try(self, *words: str) -> list[bytes] | None:
        try:
            found = await command(self._redis, *words)
        except (RedisError, OSError) as error:
            _log.warning("image_ledger_away", command=words[0], problem=str(error))
            return None
        return found if isinstance(found, list) else None
