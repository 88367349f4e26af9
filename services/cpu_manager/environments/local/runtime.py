"""The `local` runtime of a node: environments in the sandbox's walls (docs/environments.md)."""

from __future__ import annotations

import asyncio
import resource
from typing import Final, Self

from services.cpu_manager.environments.agent_environment import AgentEnvironment
from services.cpu_manager.environments.channel import OUTPUT_BYTES, Broken
from services.cpu_manager.environments.handles import Gone
from services.cpu_manager.environments.local.cell_handle import CellHandle
from services.cpu_manager.environments.local.cells import Cells, StartedCell
from services.cpu_manager.environments.protocol import BadEnvironment, Environment, RuntimeUnavailable
from services.cpu_manager.forwarder.models import Models, NoModels
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.rungs import Rung
from shared.messages.environments import LOCAL, EnvironmentSpec

AT_ONCE: Final = 8
"""Cells that are started at the same time."""


CellEnvironment = AgentEnvironment[CellHandle]


class LocalRuntime:
    """A `Runtime`. Its environments are cells of a sandbox, and end before it does."""

    name = LOCAL

    def __init__(self, cells: Cells, models: Models) -> None:
        """See `open`."""
        self._cells = cells
        self._models = models
        self._environments: dict[CellEnvironment, StartedCell] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._closed = False

    @classmethod
    async def open(
        cls, sandbox: LocalSandbox, *, output_bytes: int = OUTPUT_BYTES, models: Models | None = None
    ) -> Self:
        """Open a runtime on a sandbox, which must be closed later than this.

        Args:
            output_bytes: limit for a file or an archive that is sent back.
            models: access to the models of trajectories; None: environments that ask for it are refused.
        Raises:
            RuntimeUnavailable: this node's walls cannot hold an environment; contains the reason.
        """
        rung = sandbox.ladder.chosen
        if rung is Rung.LANDLOCK:
            raise RuntimeUnavailable(
                "the landlock rung has no namespaces, so its processes could not be stopped as one,"
                " nor kept from outliving their manager, nor reach their model and nothing else"
            )
        _open_more_files()
        try:
            return cls(Cells(sandbox.cell_resources, output_bytes), models or NoModels())
        except OSError as error:
            raise RuntimeUnavailable(f"cells of the {rung} rung cannot be frozen: {error}") from error

    async def create(self, trajectory: str, spec: EnvironmentSpec, cores: frozenset[int]) -> CellEnvironment:
        """See `Runtime.create`."""
        if self._closed:
            raise RuntimeUnavailable("the runtime is closed")
        if spec.network:
            raise BadEnvironment("a local environment has no network")
        if spec.model:
            await self._models.ready()
        deadline = asyncio.get_running_loop().time() + spec.setup_timeout_s
        async with self._room:
            cell = await self._cells.start(spec, cores)
        environment = AgentEnvironment(
            trajectory, spec, cell.handle, cell.agent, workdir=spec.workdir, dispose=self._dispose
        )
        self._environments[environment] = cell
        try:
            if cell.listener is not None:
                self._models.serve(trajectory, cell.listener)
            async with asyncio.timeout_at(deadline):
                await environment.set_up()
        except BaseException as error:
            await environment.close()
            if isinstance(error, TimeoutError):
                raise BadEnvironment(f"its set-up took longer than {spec.setup_timeout_s:g} s") from error
            if isinstance(error, Broken | Gone):
                raise RuntimeUnavailable(f"its cell ended during set-up: {error}") from error
            raise
        return environment

    def _dispose(self, environment: CellEnvironment) -> None:
        cell = self._environments.pop(environment)
        if cell.listener is not None:
            self._models.forget(environment.trajectory)
        task = asyncio.create_task(self._cells.end(cell), name="end of a cell")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def survivors(self) -> list[Environment]:
        """Return nothing: local environments end with their manager."""
        return []

    def images(self) -> frozenset[str]:
        """See `Runtime.images`. Local environments need no image."""
        return frozenset()

    async def prepare(self, image: str) -> None:
        """Does nothing: there is no image to pull."""

    async def close(self) -> None:
        """See `Runtime.close`. Safe to call again."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(environment.close() for environment in tuple(self._environments)))
        if self._ending:
            await asyncio.wait(self._ending)
        await self._cells.close()


def _open_more_files() -> None:
    """Raise the limit of open files: an environment takes fifteen; two hundred exceed the usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
