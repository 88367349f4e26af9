"""Artifacts as executors use them: a stage leaves bytes, and a later stage of the same action takes them (ADR 0074)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from redis.asyncio import Redis

from shared.bus.artifacts import read_artifact, store_artifact
from shared.bus.connection import with_retries
from shared.messages.grants import Granted
from shared.runtime.errors import Overloaded
from shared.runtime.units import Seconds

STORE_S: Final[Seconds] = 30.0
"""Limit of the retries while Valkey does not answer."""


class ArtifactUnavailable(Exception):
    """The artifact cannot be read or stored: a failure of ours, never a verdict."""


class ArtifactDelayed(ArtifactUnavailable):
    """Valkey has no free memory for it now. Another attempt later may store it."""

    def __init__(self, reason: str, retry_in_s: Seconds) -> None:
        super().__init__(reason)
        self.retry_in_s = retry_in_s


class Artifacts(Protocol):
    """Artifacts of the actions that this node executes."""

    async def read(self, grant: Granted) -> bytes:
        """Return the artifact of the nearest earlier stage that has one.

        Raises:
            ArtifactUnavailable: there is none, or Valkey has not answered.
        """

    async def store(self, grant: Granted, content: bytes) -> None:
        """Store the artifact of this stage. Call it before the outcome is reported. Stale attempts store nothing.

        Raises:
            ArtifactUnavailable: Valkey has not answered; `ArtifactDelayed`: it has no free memory.
        """


@dataclass(frozen=True, slots=True)
class StoredArtifacts:
    """Artifacts in Valkey."""

    redis: Redis

    async def read(self, grant: Granted) -> bytes:
        async def attempt() -> bytes | None:
            return await read_artifact(self.redis, grant.action, grant.stage)

        try:
            found = await with_retries(attempt, what="reading an artifact", limit_s=STORE_S)
        except Exception as error:
            raise ArtifactUnavailable(f"the artifact of an earlier stage cannot be read: {error}") from error
        if found is None:
            raise ArtifactUnavailable("the artifact of an earlier stage is not there")
        return found

    async def store(self, grant: Granted, content: bytes) -> None:
        async def attempt() -> bool:
            return await store_artifact(self.redis, grant.action, grant.stage, content)

        try:
            await with_retries(attempt, what="storing an artifact", limit_s=STORE_S)
        except Overloaded as error:
            raise ArtifactDelayed(f"the artifact cannot be stored: {error}", error.retry_after_s or 2.0) from error
        except Exception as error:
            raise ArtifactUnavailable(f"the artifact cannot be stored: {error}") from error


class NoArtifacts:
    """Artifacts of a node without a mesh: none can be read or stored."""

    async def read(self, grant: Granted) -> bytes:
        del grant
        raise ArtifactUnavailable("this node has no artifacts")

    async def store(self, grant: Granted, content: bytes) -> None:
        del grant, content
        raise ArtifactUnavailable("this node has no artifacts")
