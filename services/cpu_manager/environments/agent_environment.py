"""An `Environment` whose agent executes the actions. It is frozen between them, and ended if it cannot be frozen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

import msgspec

from services.cpu_manager.environments.channel import AgentChannel, Broken
from services.cpu_manager.environments.handles import EnvironmentHandle, EnvironmentUsage, Gone
from services.cpu_manager.environments.model_variables import variables_of
from services.cpu_manager.environments.protocol import ActEnd, BadEnvironment, RuntimeUnavailable
from services.cpu_manager.kinds import EnvBash
from shared.kinds.spec import Params
from shared.messages.environments import EnvironmentSpec
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)

Handle = TypeVar("Handle", bound=EnvironmentHandle)
Result = TypeVar("Result")

SETTLE_S: Final = 20.0
"""Time to settle a new environment while 24 others start, on two cores."""
_RETRY_S: Final = 0.05
_RESUMES: Final = 3
"""Tries to thaw a parked environment. The answer of the engine to one call may be lost."""
_RESUME_AGAIN_S: Final = 0.5
_EXCEEDED: Final = "a process was killed at the memory limit"
_OUTPUT_CHARS: Final = 4000
"""Characters of a failed set-up line's output that its trainer gets."""


async def _unknown() -> str:
    return ""


class AgentEnvironment(Generic[Handle]):
    """An environment of any runtime, composed of its runtime's handle and the channel to its agent.

    A lock serialises thawing, freezing and killing: a killed environment is thawed, and must not be frozen again. The
    requests of `park` and `resume` to the agent hold it until they are answered: a frozen agent answers nothing.
    """

    def __init__(
        self,
        trajectory: str,
        spec: EnvironmentSpec,
        handle: Handle,
        agent: AgentChannel,
        *,
        workdir: str = "",
        age_s: Seconds = 0.0,
        dispose: Callable[[AgentEnvironment[Handle]], None],
        cause_of_end: Callable[[], Awaitable[str]] = _unknown,
    ) -> None:
        """Compose it of its parts.

        Args:
            workdir: where actions start; empty: where the agent was started.
            age_s: seconds since its creation.
            dispose: starts its removal in the background; called once.
            cause_of_end: returns why it has ended, if its runtime can find out; else empty.
        """
        self.handle = handle
        self._trajectory = trajectory
        self._spec = spec
        self._agent = agent
        self._workdir = workdir
        self._lock = asyncio.Lock()
        self._parking = asyncio.Lock()
        """Serialises `park` and `resume`."""
        self._turn = 0
        """Changes when an action begins and when it ends or is cancelled."""
        self._parked = False
        self._peak_memory_bytes = 0
        """Peak of the running action before it was last parked."""
        agent.thaw = self._thaw
        self._end_reason = ""
        self._dispose = dispose
        self._cause_of_end = cause_of_end
        self._created_at = asyncio.get_running_loop().time() - age_s

    @property
    def trajectory(self) -> str:
        return self._trajectory

    @property
    def spec(self) -> EnvironmentSpec:
        return self._spec

    @property
    def alive(self) -> bool:
        return not self._end_reason and self.handle.alive and not self._agent.broken

    @property
    def age_s(self) -> Seconds:
        """Seconds since its creation, by this or an earlier manager."""
        return asyncio.get_running_loop().time() - self._created_at

    async def act(self, kind: str, params: Params, cores: frozenset[int], timeout_s: float) -> ActEnd:
        """See `Environment.act`. Costs about 2 ms beside the action itself if it bypasses the engine."""
        try:
            try:
                before = await self._resume(cores)
                self._peak_memory_bytes = 0
                end = await self._agent.do(kind, params, timeout_s)
                return _with(end, before, await self.handle.usage(), self._peak_memory_bytes)
            finally:
                self._turn += 1
                await uninterrupted(self._pause())
        except (Broken, Gone) as error:
            return ActEnd(ended_by="lost", reason=await self._died(str(error)))
        except RuntimeUnavailable as error:
            return ActEnd(ended_by="lost", reason=str(error))

    async def park(self) -> bool:
        """See `Environment.park`."""
        try:
            async with self._parking:
                await self._agent.sent()
                async with self._lock:
                    turn = self._turn
                    if not await self._agent.hold() or turn != self._turn or self._end_reason:
                        return False
                    await uninterrupted(self._freeze_to_park())
                    return True
        except (Broken, Gone) as error:
            await self._died(str(error))
            return False

    async def _freeze_to_park(self) -> None:
        """Freeze it. If that fails, let the action run on: it has its cores."""
        try:
            await self.handle.pause()
        except RuntimeUnavailable:
            await self._thaw_parked(frozenset())
            await self._agent.proceed()
            raise
        self._parked = True
        peak = (await self.handle.usage()).peak_memory_bytes
        self._peak_memory_bytes = max(self._peak_memory_bytes, peak)

    async def resume(self, cores: frozenset[int]) -> None:
        """See `Environment.resume`."""
        try:
            async with self._parking, self._lock:
                if not self._parked or self._end_reason:
                    return
                self._parked = False
                await uninterrupted(self._thaw_parked(cores))
                await self._agent.proceed()
        except (Broken, Gone) as error:
            await self._died(str(error))

    async def _thaw_parked(self, cores: frozenset[int]) -> None:
        """Thaw it for its action. Raise `Gone` if it cannot be thawed: the action could not end."""
        for attempt in range(1, _RESUMES + 1):
            try:
                await self.handle.resume(cores)
            except RuntimeUnavailable as error:
                if attempt == _RESUMES:
                    raise Gone(str(error)) from error
                await asyncio.sleep(_RESUME_AGAIN_S)
            else:
                return

    async def cpu_s(self) -> float | None:
        """See `Environment.cpu_s`."""
        try:
            return (await self.handle.usage()).cpu_s or None  # zero: its runtime does not measure
        except (Gone, RuntimeUnavailable, OSError, ValueError):  # a measurement is not worth its node
            return None

    async def close(self) -> None:
        """Kill everything in it at once. Its removal continues in the background (`Runtime.close` waits for it)."""
        if not self._end_reason:
            self._end_reason = "it was closed"
            await uninterrupted(self._kill())
            self._dispose(self)

    async def set_up(self) -> None:
        """Settle its agent and run its set-up lines, like actions on the cores of its creation; then freeze it.

        Raises:
            BadEnvironment: its working directory cannot be created, or a line failed.
            Broken, Gone: it has ended.
            RuntimeUnavailable: the engine does not answer.
        """
        try:
            await settle(self._agent, self._workdir, self._spec)
            if self._spec.setup:
                await self._resume(frozenset())
            for line in self._spec.setup:
                end = await self._agent.do("env.bash", EnvBash(line=line), self._spec.setup_timeout_s)
                if not end.passed:
                    output = str(end.output.get("output", ""))[-_OUTPUT_CHARS:]
                    raise BadEnvironment(f"set-up line {line[:200]!r} failed: {end.reason}\n{output}".rstrip())
        except ValueError as error:
            raise BadEnvironment(f"its working directory cannot be used: {error}") from error
        finally:
            await uninterrupted(self._pause())

    async def adopt(self) -> None:
        """End the action of an earlier manager, and freeze it.

        Raises:
            Broken, Gone: it cannot be adopted.
            RuntimeUnavailable: the engine does not answer.
        """
        try:
            await self._resume(frozenset())
            await settle(self._agent, self._workdir, self._spec)
        except ValueError as error:
            raise Broken(str(error)) from error
        finally:
            await uninterrupted(self._pause())

    async def _resume(self, cores: frozenset[int]) -> EnvironmentUsage:
        async with self._lock:
            if self._end_reason:
                raise Gone(self._end_reason)
            if not self.handle.alive or self._agent.broken:
                raise Gone("it has ended")
            self._parked = False
            await uninterrupted(self.handle.resume(cores))  # half done, its state would be unknown
            return await self.handle.usage()

    async def _pause(self) -> None:
        """Freeze it. An environment that cannot be frozen is ended, so that it keeps no cores without a grant."""
        try:
            async with self._lock:
                if not self._end_reason and self.handle.alive:
                    await self.handle.pause()
        except (Gone, RuntimeUnavailable) as error:
            await self._died(str(error))

    async def _thaw(self) -> None:
        """Thaw a parked environment on the cores that it had, because its action was cancelled."""
        self._turn += 1
        async with self._lock:
            if self._parked and not self._end_reason:
                self._parked = False
                with contextlib.suppress(Gone, RuntimeUnavailable):
                    await uninterrupted(self.handle.resume(frozenset()))

    async def _kill(self) -> None:
        self._agent.close()  # ends the wait for an answer of the one that has the lock
        async with self._lock:
            await self.handle.kill()

    async def _died(self, reason: str) -> str:
        """End what is left of it. Return why it ended, if known."""
        if self._end_reason:
            return self._end_reason
        why = await self._cause_of_end() or reason
        _log.warning("environment_died", trajectory=self._trajectory, reason=why)
        await self.close()
        self._end_reason = why
        return why


async def settle(agent: AgentChannel, workdir: str, spec: EnvironmentSpec) -> None:
    """Settle an agent. If it still executes an action of an earlier manager, wait for the end and try again.

    Raises:
        Broken: it does not answer, or its action does not end.
        ValueError: it cannot work in its directory.
    """
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    while True:
        left = deadline - asyncio.get_running_loop().time()
        try:
            await agent.settle(workdir, variables_of(spec), max(left, 0.1))
        except ValueError as error:
            if str(error) != "busy":
                raise
            if left <= 0:
                raise Broken("an action of an earlier manager does not end") from error
            await asyncio.sleep(_RETRY_S)
        else:
            return


async def uninterrupted(work: Coroutine[Any, Any, Result]) -> Result:
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


def _with(end: ActEnd, before: EnvironmentUsage, after: EnvironmentUsage, peak_memory_bytes: int) -> ActEnd:
    """Return the end with the usage of this action."""
    exceeded = after.memory_kills > before.memory_kills
    return msgspec.structs.replace(
        end,
        output={**end.output, "memory_exceeded": True} if exceeded else end.output,
        reason=f"{end.reason}: {_EXCEEDED}".removeprefix(": ") if exceeded and not end.passed else end.reason,
        cpu_s=max(after.cpu_s - before.cpu_s, 0.0),
        peak_memory_bytes=max(after.peak_memory_bytes, peak_memory_bytes),
    )
