"""Access of containers to the models of their trajectories. They keep `network: none`."""

from __future__ import annotations

from typing import Final

from services.cpu_manager.environments.agent_environment import AgentEnvironment
from services.cpu_manager.environments.docker.creation import ContainerHandle
from services.cpu_manager.environments.docker.direct_handle import DirectHandle
from services.cpu_manager.environments.protocol import BadEnvironment
from services.cpu_manager.forwarder.models import Models
from shared.messages.environments import MODEL_PORT, EnvironmentSpec
from shared.runtime.units import Seconds

_PREDECESSOR_S: Final[Seconds] = 5.0
"""Time in which the forwarder of an earlier manager closes its listeners."""


class ContainerModels:
    """What a runtime of containers does for those whose specification asks for their model."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def ready(self, spec: EnvironmentSpec) -> None:
        """Prepare for a container that will be created. Raise `BadEnvironment` if no model can be reached."""
        if spec.model:
            await self._models.ready()

    async def serve(self, environment: AgentEnvironment[ContainerHandle], again_s: Seconds = 0.0) -> None:
        """Let a container reach its model.

        Raises:
            BadEnvironment: this manager cannot enter its network namespace.
            Gone: it has ended.
        """
        if not environment.spec.model:
            return
        handle = environment.handle
        if not isinstance(handle, DirectHandle):
            raise BadEnvironment(
                "its model cannot be reached from its container: that takes a manager that is root on the engine's host"
            )
        try:
            listener = await handle.listen(MODEL_PORT, again_s)
        except OSError as error:
            raise BadEnvironment(f"its model cannot be reached from its container: {error}") from error
        self._models.serve(environment.trajectory, listener)

    async def serve_survivor(self, environment: AgentEnvironment[ContainerHandle]) -> None:
        """Do the same for the container of an earlier manager. A router may come later."""
        if environment.spec.model:
            await self._models.ready(router=False)
            await self.serve(environment, _PREDECESSOR_S)

    def forget(self, environment: AgentEnvironment[ContainerHandle]) -> None:
        """End the access of a container that is closed."""
        if environment.spec.model:
            self._models.forget(environment.trajectory)
