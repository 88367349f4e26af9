"""One runtime for each rung that can hold an environment here, and test module."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from services.cpu_manager.environments.local.runtime import CellEnvironment, LocalRuntime
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.rungs import Rung
from tests.services.cpu_manager.environments.local.acting import CORE, SMALL
from tests.services.cpu_manager.sandbox.conftest import available_rungs, passable


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "runtime" in metafunc.fixturenames:
        rungs = [rung for rung in available_rungs() if rung is not Rung.LANDLOCK]
        metafunc.parametrize("runtime", rungs, ids=str, indirect=True, scope="module")


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
