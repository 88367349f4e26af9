"""One trajectory's container, as an `Environment`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from services.cpu_manager.environments.channel import Resident
from services.cpu_manager.environments.held import HeldEnvironment
from services.cpu_manager.environments.holds import Hold
from shared.messages.environments import EnvironmentSpec
from shared.runtime.units import Seconds


class DockerEnvironment(HeldEnvironment):
    """Made by `runtime`."""

    def __init__(
        self,
        trajectory: str,
        spec: EnvironmentSpec,
        container: str,
        hold: Hold,
        resident: Resident,
        *,
        age_s: Seconds = 0.0,
        inquest: Callable[[str], Awaitable[str]],
        bury: Callable[[DockerEnvironment], None],
    ) -> None:
        """`inquest(container)` says why one ended; `bury` sees to the removal of this one."""
        super().__init__(trajectory, spec, hold, resident, age_s=age_s)
        self.container = container
        self._inquest = inquest
        self._bury = bury

    async def inquest(self) -> str:
        return await self._inquest(self.container)

    def bury(self) -> None:
        self._bury(self)
