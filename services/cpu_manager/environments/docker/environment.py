"""One trajectory's container, as an `Environment`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from services.cpu_manager.environments.channel import Resident
from services.cpu_manager.environments.held import HeldEnvironment
from services.cpu_manager.environments.holds import Hold
from shared.messages.environments import EnvironmentSpec
from shared.runtime.units import Seconds


class DockerEnvironment(HeldEnvironment):
    """Created by `runtime`."""

    def __init__(
        self,
        trajectory: str,
        spec: EnvironmentSpec,
        container: str,
        hold: Hold,
        resident: Resident,
        *,
        age_s: Seconds = 0.0,
        cause_of_end: Callable[[str], Awaitable[str]],
        dispose: Callable[[DockerEnvironment], None],
    ) -> None:
        """`cause_of_end(container)` returns why a container ended; `dispose` removes this one."""
        super().__init__(trajectory, spec, hold, resident, age_s=age_s)
        self.container = container
        self._cause_of_end = cause_of_end
        self._dispose = dispose

    async def cause_of_end(self) -> str:
        return await self._cause_of_end(self.container)

    def dispose(self) -> None:
        self._dispose(self)
