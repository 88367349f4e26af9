from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import Sandbox
from services.cpu_manager.sandbox.rungs import NoSandboxError
from tests.services.cpu_manager.graders.sandboxes import BareInterpreter


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def walls() -> AsyncIterator[LocalSandbox]:
    """This host's real sandbox, one for all tests: a zygote start would cost each of them 300 ms.

    Tests that ask for it run on the session's event loop (`pytestmark = pytest.mark.asyncio(loop_scope="session")`).
    """
    try:
        local = await LocalSandbox.create()
    except NoSandboxError as reason:
        pytest.skip(f"no sandbox on this host: {reason}")
    yield local
    await local.close()


@pytest.fixture(params=["bare", "walls"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """The harness alone, and the harness behind walls: its honesty must rest on neither."""
    if request.param == "bare":
        return BareInterpreter()
    found: Sandbox = request.getfixturevalue("walls")
    return found
