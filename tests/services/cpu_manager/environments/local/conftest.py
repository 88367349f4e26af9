"""One runtime for each rung that can hold an environment here, and test module."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from services.cpu_manager.environments.local.runtime import CellEnvironment, LocalRuntime
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.rungs import Rung
from tests.services.cpu_manager.environments.local.acting import CORE, SMALL, WITH_MODEL
from tests.services.cpu_manager.environments.models import ModelMesh, model_mesh
from tests.services.cpu_manager.sandbox.conftest import available_rungs, passable
from tests.services.trajectory_router.conftest import StartRouter, start_router
from tests.services.trajectory_router.engine import free_port

__all__ = ["start_router"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "runtime" in metafunc.fixturenames:
        rungs = [rung for rung in available_rungs() if rung is not Rung.LANDLOCK]
        metafunc.parametrize("runtime", rungs, ids=str, indirect=True, scope="module")
    if "rung" in metafunc.fixturenames:
        metafunc.parametrize("rung", [rung for rung in available_rungs() if rung is not Rung.LANDLOCK], ids=str)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(
    request: pytest.FixtureRequest,
) -> AsyncIterator[LocalRuntime]:
    with passable() as folder:
        sandbox = await LocalSandbox.create(rung=request.param, scratch=folder / "scratch")
        made = await LocalRuntime.open(sandbox)
        yield made
        await made.close()
        await sandbox.close()


@pytest_asyncio.fixture(loop_scope="module")
async def environment(runtime: LocalRuntime) -> AsyncIterator[CellEnvironment]:
    made = await runtime.create("one", SMALL, CORE)
    yield made
    await made.close()


@pytest.fixture
async def mesh(start_router: StartRouter, redis_url: str, database_url: str) -> AsyncIterator[ModelMesh]:
    async with model_mesh(await start_router(1, port=free_port()), redis_url, database_url) as made:
        yield made


@pytest.fixture
async def models(mesh: ModelMesh, rung: Rung) -> AsyncIterator[LocalRuntime]:
    """A runtime whose environments reach models."""
    with passable() as folder:
        sandbox = await LocalSandbox.create(rung=rung, scratch=folder / "scratch")
        runtime = await LocalRuntime.open(sandbox, models=mesh.forwarder)
        yield runtime
        await runtime.close()
        await sandbox.close()


@pytest.fixture
async def trajectory(mesh: ModelMesh) -> str:
    return str((await mesh.opened())["id"])


@pytest.fixture
async def with_model(models: LocalRuntime, trajectory: str) -> AsyncIterator[CellEnvironment]:
    made = await models.create(trajectory, WITH_MODEL, CORE)
    yield made
    await made.close()
