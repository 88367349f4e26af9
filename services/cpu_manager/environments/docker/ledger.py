"""Ledger of pulled images in the mesh's store: one hash per engine and node, image -> time of its last use."""

from __future__ import annotations

from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from shared.bus.connection import command
from shared.runtime import log

_log = log.get(__name__)

PULLED: Final = "pulled:"


class StoreLedger:
    """A `Ledger`. The key contains the engine's id, so a node that moves to another host owns nothing there."""

    def __init__(self, redis: Redis, node: str, engine: str) -> None:
        self._redis = redis
        self._key = f"{PULLED}{engine}:{node}"

    async def read(self) -> dict[str, float]:
        """Return the ledger; empty if the store does not answer. Then no image of an earlier manager is removed."""
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
