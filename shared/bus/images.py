"""Images that a node pulled itself, with the time of their last use."""

from __future__ import annotations

from dataclasses import dataclass

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command


@dataclass(frozen=True, slots=True)
class PulledImages:
    """The images of one engine and node. A node that moves to another engine owns nothing there."""

    redis: Redis
    engine: str
    node: str

    async def read(self) -> dict[str, float]:
        """Return image -> time of its last use, Unix seconds."""
        flat = await command(self.redis, "HGETALL", self._key)
        return {name.decode(): float(usage) for name, usage in zip(flat[::2], flat[1::2], strict=True)}

    async def note(self, image: str, used_at: float) -> None:
        """Record a use."""
        await command(self.redis, "HSET", self._key, image, f"{used_at:.0f}")

    async def drop(self, image: str) -> None:
        """Remove an image."""
        await command(self.redis, "HDEL", self._key, image)

    @property
    def _key(self) -> str:
        return keys.pulled(self.engine, self.node)
