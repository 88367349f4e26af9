"""Artifacts of unanswered actions: bytes that one stage leaves for later ones (ADR 0074).

Laws (tests/shared/bus/test_artifacts.py):
  - an artifact lives as long as its action is unanswered: the answer deletes it in the same write;
  - only the present stage's artifact is written, and before the outcome of that stage. So a later stage finds it whole,
    and a late attempt of an earlier stage changes nothing;
  - without free memory nothing is written.
"""

from __future__ import annotations

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import call


async def store_artifact(redis: Redis, action: str, stage: int, content: bytes) -> bool:
    """Store the artifact of the present stage. False: the action is answered, or in another stage.

    Raises:
        Overloaded: Valkey's memory bound is reached; nothing was written.
    """
    return bool(await call(redis, "store_artifact_v1", (keys.action(action),), stage, content))


async def read_artifact(redis: Redis, action: str, stage: int) -> bytes | None:
    """Return the artifact of the nearest stage before `stage` that has one; None if none has."""
    listed = await command(redis, "HGET", keys.action(action), "artifacts")
    earlier = [int(one) for one in (listed or b"").split() if int(one) < stage]
    if not earlier:
        return None
    found: bytes | None = await command(redis, "HGET", keys.action(action), f"artifact:{max(earlier)}")
    return found
