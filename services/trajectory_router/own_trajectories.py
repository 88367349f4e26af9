"""Addresses of trajectories: `/r/{trajectory}/v1/...`, each with a key that opens it alone, while it is open."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec
from redis.asyncio import Redis

from services.trajectory_router.exchange import Exchange
from shared.api.model_routes import OWN
from shared.bus.connection import TRANSIENT
from shared.bus.router_keys import ModelKeys, ModelTrajectory, read_model_trajectory
from shared.runtime.errors import Forbidden, Unauthorized, Unavailable

NO_HEADERS: Final[frozenset[bytes]] = frozenset()
_OPENED: Final = re.compile(r"t[0-9a-f]{24}")
"""Ids of opened trajectories."""


def split_own(path: str) -> tuple[str, str]:
    """Return the trajectory of a path and the rest; empty: it is no trajectory's own."""
    if not path.startswith(OWN):
        return "", path
    trajectory, slash, rest = path.removeprefix(OWN).partition("/")
    return trajectory, slash + rest


@dataclass(frozen=True, slots=True)
class ModelCaller:
    """Trajectory whose own address a client has called."""

    own: str = ""
    """Empty: it has called the common one."""
    opened: ModelTrajectory | None = None

    def with_sampling(self, body: bytes) -> bytes:
        """Return a body with the trajectory's sampling where it has none. Unchanged bytes if it has all."""
        if self.opened is None or not self.opened.sampling:
            return body
        fields = msgspec.json.decode(body)
        missing = {name: value for name, value in self.opened.sampling.items() if fields.get(name) is None}
        if "max_completion_tokens" in fields:
            missing.pop("max_tokens", None)
        return msgspec.json.encode({**fields, **missing}) if missing else body


class OwnTrajectories:
    """Checks keys and states."""

    def __init__(self, redis: Redis, model_keys: ModelKeys) -> None:
        self._redis = redis
        self._keys = model_keys

    async def admitted(self, trajectory: str, exchange: Exchange) -> ModelTrajectory:
        """Return the trajectory of a caller with its key.

        Raises:
            Unauthorized: the key is missing or wrong.
            Forbidden: the trajectory has ended.
            Unavailable: Valkey does not answer.
        """
        given = exchange.header(b"x-api-key") or exchange.header(b"authorization").removeprefix("Bearer ").strip()
        if not self._keys.opens(trajectory, given):
            raise Unauthorized(what="send the api_key of the answer that opened the trajectory, as a bearer token")
        opened = await self._read(trajectory)
        if opened is None or not opened.is_open:
            raise Forbidden(what=f"trajectory {trajectory} has ended, and its key with it")
        return opened

    async def named(self, trajectory: str, tenant: str) -> ModelTrajectory | None:
        """Return the trajectory that a call at the common address names; None if this tenant has opened none of this
        id, which is then an id like any other.

        Raises:
            Forbidden: the trajectory has ended, and its calls were recorded.
            Unavailable: Valkey does not answer.
        """
        if not _OPENED.fullmatch(trajectory):
            return None
        opened = await self._read(trajectory)
        if opened is None or opened.tenant != tenant:
            return None
        if opened.records_tokens and not opened.is_open:
            raise Forbidden(what=f"trajectory {trajectory} has ended, and its record with it")
        return opened

    async def _read(self, trajectory: str) -> ModelTrajectory | None:
        try:
            return await read_model_trajectory(self._redis, trajectory)
        except TRANSIENT as error:
            raise Unavailable(what="Valkey does not answer") from error
