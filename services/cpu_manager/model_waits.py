"""Parks actions that only wait for their model, and lets them continue when the answer is there (ADR 0067).

An agent in an environment is one long action. While all model calls of the environment wait for their answers and its
processes are idle, it does not use its cores. ARL-Tangram (§5.2) allocates cores to an action when it executes. This
module also releases them during the action, while the model answers.

Laws (tests/services/cpu_manager/test_model_waits.py):
  - an action is parked only after all open calls have waited for `after_s`, and its processes were idle in the second
    half of it. Time in which it was frozen does not count;
  - it is requested to continue at the next change of its calls, or after `MOST_PARKED_S`. A caller that has parked it
    meanwhile has precedence;
  - the request to continue is repeated until Valkey has answered it.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Final, Protocol

from redis.asyncio import Redis

from services.cpu_manager.managed_environments import UnparkedAction
from services.cpu_manager.metrics import MODEL_WAITS
from shared.bus import parking
from shared.bus.connection import with_retries
from shared.messages.grants import Granted
from shared.runtime.background import Background
from shared.runtime.units import Seconds

REASON: Final = "its model answers"
"""Reason of the parked action, for people."""
IDLE_SHARE: Final = 0.2
"""Share of one core below which processes are idle: a client that reads a stream uses some."""
MOST_PARKED_S: Final[Seconds] = 120.0
"""Time after which a parked action continues although its call is open. Its client, and its time limit, may end a call
that never ends; an idle one is parked again."""
_MOST_PAUSE_S: Final[Seconds] = 1.0
"""Longest pause between two looks at processes that are not idle."""


class ActingEnvironments(Protocol):
    """The environments of this node."""

    def acting_in(self, trajectory: str) -> UnparkedAction | None:
        """Return the action that runs in this environment now; None: there is none, or it is parked."""
        ...


@dataclass(slots=True, eq=False)
class _Calls:
    """Open model calls of one environment."""

    open: int = 0
    waiting: int = 0
    version: int = 0
    """Increases with each change. If one of two calls is answered, the other still waits: that is a change too."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def wait(self) -> bool:
        """Whether all calls wait for their answers."""
        return 0 < self.open == self.waiting

    def change(self, open_calls: int, waiting: int) -> None:
        self.open, self.waiting = open_calls, waiting
        self.version += 1
        self._changed.set()

    async def change_after(self, version: int, within_s: Seconds | None = None) -> bool:
        """Return True after the next change, False if there is none in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.version == version:
                    self._changed.clear()
                    await self._changed.wait()
        return self.version != version


class ModelWaits:
    """Parks the actions of one node while their environments wait for models."""

    def __init__(
        self, redis: Redis, node: str, environments: ActingEnvironments, background: Background, after_s: Seconds
    ) -> None:
        """`after_s`: time for which an environment waits before its action is parked."""
        self._redis = redis
        self._node = node
        self._environments = environments
        self._background = background
        self._after_s = after_s
        self._calls: dict[str, _Calls] = {}

    def changed(self, trajectory: str, open_calls: int, waiting: int) -> None:
        """Apply the calls of an environment that are under way now (`forwarder.control.CallsChanged`)."""
        calls = self._calls.get(trajectory)
        if calls is not None:
            calls.change(open_calls, waiting)
        elif open_calls:
            calls = self._calls[trajectory] = _Calls(open_calls, waiting)
            self._background.start(self._follow(trajectory, calls), name=f"model calls of {trajectory}")

    async def _follow(self, trajectory: str, calls: _Calls) -> None:
        """Park the actions of one environment and let them continue, until no call is open."""
        while calls.open:
            version = calls.version
            if not calls.wait:
                await calls.change_after(version)
            elif (grant := await self._idle(trajectory, calls, version)) is not None:
                await self._park(grant, calls, version)
        del self._calls[trajectory]

    async def _idle(self, trajectory: str, calls: _Calls, version: int) -> Granted | None:
        """Return the running action as soon as its processes are idle. None: the calls have changed before."""
        pause_s = self._after_s / 2
        if await calls.change_after(version, pause_s):  # quick calls cost no measurement
            return None
        before = await self._used(trajectory)
        while not await calls.change_after(version, pause_s):
            after = await self._used(trajectory)
            if before is not None and after is not None and before[0] == after[0]:
                used_s = after[1] - before[1]
                if used_s <= IDLE_SHARE * pause_s:
                    return after[0].grant
            before, pause_s = after, max(self._after_s, min(2 * pause_s, _MOST_PAUSE_S))
        return None

    async def _used(self, trajectory: str) -> tuple[UnparkedAction, Seconds] | None:
        """Return the running action, and the CPU time of its environment. None: there is none, or it is unknown."""
        running = self._environments.acting_in(trajectory)
        if running is None:
            return None
        cpu_s = await running.environment.cpu_s()
        return None if cpu_s is None else (running, cpu_s)

    async def _park(self, grant: Granted, calls: _Calls, version: int) -> None:
        """Park an action until its calls change, or for `MOST_PARKED_S`."""
        action, name, node = grant.action, parking.grant_of(grant.attempt, self._node), self._node
        receipt = await with_retries(
            lambda: parking.park(self._redis, action, REASON, grant=name, parker=node), what="parking", limit_s=None
        )
        if receipt != "requested":
            await calls.change_after(version, _MOST_PAUSE_S)
            return
        with MODEL_WAITS.time():
            await calls.change_after(version, MOST_PARKED_S)
            await with_retries(
                lambda: parking.resume(self._redis, action, grant=name, parker=node), what="resuming", limit_s=None
            )
