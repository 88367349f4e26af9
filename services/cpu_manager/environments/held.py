"""An `Environment` that is frozen between actions, and ended if it cannot be frozen. Its runtime supplies the hold."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import msgspec

from services.cpu_manager.environments.channel import Broken, Resident
from services.cpu_manager.environments.holds import Gone, Hold, Used
from services.cpu_manager.environments.protocol import ActEnd, BadEnvironment, RuntimeUnavailable
from shared.messages.environments import EnvironmentSpec
from shared.messages.kinds import EnvBash, Params
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)

Result = TypeVar("Result")

SETTLE_S: Final = 20.0
"""Time to settle a new environment while 24 others start, on two cores."""
_LOOK_S: Final = 0.05
_EXCEEDED: Final = "something was ended for want of memory"
_SAID: Final = 4000
"""Characters of a failed set-up line's output that its trainer gets."""


class HeldEnvironment:
    """An environment, created by a runtime.

    A lock serialises waking, freezing and killing: a killed environment is thawed, and must not be frozen again.
    """

    def __init__(
        self,
        trajectory: str,
        spec: EnvironmentSpec,
        hold: Hold,
        resident: Resident,
        *,
        workdir: str = "",
        age_s: Seconds = 0.0,
    ) -> None:
        """`workdir`: where actions start; empty: where the resident was started."""
        self.hold = hold
        self._trajectory = trajectory
        self._spec = spec
        self._resident = resident
        self._workdir = workdir
        self._gate = asyncio.Lock()
        self._over = ""
        self._made_at = asyncio.get_running_loop().time() - age_s

    async def cause_of_end(self) -> str:
        """Return why it has ended, if its runtime can find out; else empty."""
        return ""

    def dispose(self) -> None:
        """Start its removal in the background. Called once."""
        raise NotImplementedError

    @property
    def trajectory(self) -> str:
        return self._trajectory

    @property
    def spec(self) -> EnvironmentSpec:
        return self._spec

    @property
    def alive(self) -> bool:
        return not self._over and self.hold.alive and not self._resident.broken

    @property
    def age_s(self) -> Seconds:
        """Seconds since its creation, by this or an earlier manager."""
        return asyncio.get_running_loop().time() - self._made_at

    async def act(self, kind: str, params: Params, cores: frozenset[int], timeout_s: float) -> ActEnd:
        """See `Environment.act`. Costs about 2 ms beside the action itself if it bypasses the engine."""
        try:
            try:
                before = await self._resume(cores)
                end = await self._resident.do(kind, params, timeout_s)
                return _with(end, before, await self.hold.used())
            finally:
                await to_its_end(self._pause())
        except (Broken, Gone) as error:
            return ActEnd(ended_by="lost", reason=await self._died(str(error)))
        except RuntimeUnavailable as error:
            return ActEnd(ended_by="lost", reason=str(error))

    async def close(self) -> None:
        """Kill everything in it at once. Its removal continues in the background (`Runtime.close` waits for it)."""
        if not self._over:
            self._over = "it was closed"
            await to_its_end(self._kill())
            self.dispose()

    async def begin(self) -> None:
        """Settle its resident and run its set-up lines, like actions on the cores of its creation; then freeze it.

        Raises:
            BadEnvironment: its working directory cannot be created, or a line failed.
            Broken, Gone: it has ended.
            RuntimeUnavailable: the engine does not answer.
        """
        try:
            await at_rest(self._resident, self._workdir, self._spec)
            if self._spec.setup:
                await self._resume(frozenset())
            for line in self._spec.setup:
                end = await self._resident.do("env.bash", EnvBash(line=line), self._spec.setup_timeout_s)
                if not end.passed:
                    said = str(end.output.get("output", ""))[-_SAID:]
                    raise BadEnvironment(f"set-up line {line[:200]!r} failed: {end.reason}\n{said}".rstrip())
        except ValueError as error:
            raise BadEnvironment(f"its working directory cannot be used: {error}") from error
        finally:
            await to_its_end(self._pause())

    async def adopt(self) -> None:
        """End what it was doing for an earlier manager, and freeze it.

        Raises:
            Broken, Gone: it cannot be adopted.
            RuntimeUnavailable: the engine does not answer.
        """
        try:
            await self._resume(frozenset())
            await at_rest(self._resident, self._workdir, self._spec)
        except ValueError as error:
            raise Broken(str(error)) from error
        finally:
            await to_its_end(self._pause())

    async def _resume(self, cores: frozenset[int]) -> Used:
        async with self._gate:
            if self._over:
                raise Gone(self._over)
            if not self.hold.alive or self._resident.broken:
                raise Gone("it has ended")
            await to_its_end(self.hold.resume(cores))  # half done, its state would be unknown
            return await self.hold.used()

    async def _pause(self) -> None:
        """Freeze it. An environment that cannot be frozen is ended, so that it keeps no cores without a grant."""
        try:
            async with self._gate:
                if not self._over and self.hold.alive:
                    await self.hold.pause()
        except (Gone, RuntimeUnavailable) as error:
            await self._died(str(error))

    async def _kill(self) -> None:
        async with self._gate:
            self._resident.close()
            await self.hold.kill()

    async def _died(self, reason: str) -> str:
        """End what is left of it. Return why it ended, if known."""
        if self._over:
            return self._over
        why = await self.cause_of_end() or reason
        _log.warning("environment_died", trajectory=self._trajectory, reason=why)
        await self.close()
        self._over = why
        return why


async def at_rest(resident: Resident, workdir: str, spec: EnvironmentSpec) -> None:
    """Settle a resident. If it is still acting for an earlier manager, wait for the end and try again.

    Raises:
        Broken: it does not answer, or its action does not end.
        ValueError: it cannot work in its directory.
    """
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    while True:
        left = deadline - asyncio.get_running_loop().time()
        try:
            await resident.settle(workdir, spec.env, max(left, 0.1))
        except ValueError as error:
            if str(error) != "busy":
                raise
            if left <= 0:
                raise Broken("it is still at what it did for an earlier manager") from error
            await asyncio.sleep(_LOOK_S)
        else:
            return


async def to_its_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Complete the work even if cancelled meanwhile; then raise the cancellation."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


def _with(end: ActEnd, before: Used, after: Used) -> ActEnd:
    """Return the end with the usage of this action."""
    exceeded = after.memory_kills > before.memory_kills
    return msgspec.structs.replace(
        end,
        output={**end.output, "memory_exceeded": True} if exceeded else end.output,
        reason=f"{end.reason}: {_EXCEEDED}".removeprefix(": ") if exceeded and not end.passed else end.reason,
        cpu_s=max(after.cpu_s - before.cpu_s, 0.0),
        peak_memory_bytes=after.peak_memory_bytes,
    )
