"""An environment whose actions sleep for `sleep SECONDS`, and can be parked: for nodes without a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from services.cpu_manager.environments.protocol import ActEnd, Environment
from services.cpu_manager.kinds import EnvExec
from shared.kinds.spec import Params
from shared.messages.environments import EnvironmentSpec


@dataclass(eq=False)
class SleepingEnvironment:
    """An action makes progress only while it is not parked."""

    trajectory: str
    spec: EnvironmentSpec
    alive: bool = True
    _acting: bool = False
    _thawed: asyncio.Event = field(default_factory=asyncio.Event)
    _freezes: asyncio.Event = field(default_factory=asyncio.Event)

    async def act(self, kind: str, params: Params, cores: frozenset[int], timeout_s: float) -> ActEnd:
        """Sleep on any cores."""
        assert isinstance(params, EnvExec)
        left_s, now = float(params.argv[1]), asyncio.get_running_loop().time
        self._acting = True
        self._thawed.set()
        try:
            while left_s > 0:
                await self._thawed.wait()
                self._freezes.clear()
                begun = now()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._freezes.wait(), left_s)
                left_s -= now() - begun
        finally:
            self._acting = False
        return ActEnd(ended_by="done", passed=True)

    async def park(self) -> bool:
        """Freeze the action if there is one."""
        if self._acting:
            self._thawed.clear()
            self._freezes.set()
        return self._acting

    async def resume(self, cores: frozenset[int]) -> None:
        """Let the action continue."""
        self._thawed.set()

    async def cpu_s(self) -> float | None:
        """Not measured."""
        return None

    async def close(self) -> None:
        """End it."""
        self.alive = False


class SleepingRuntime:
    """Runtime of such environments, with no images and no survivors."""

    name = "local"

    async def create(self, trajectory: str, spec: EnvironmentSpec, cores: frozenset[int]) -> SleepingEnvironment:
        """Create one at once."""
        return SleepingEnvironment(trajectory, spec)

    async def survivors(self) -> list[Environment]:
        """Return none."""
        return []

    def images(self) -> frozenset[str]:
        """Return none."""
        return frozenset()

    async def prepare(self, image: str) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""
