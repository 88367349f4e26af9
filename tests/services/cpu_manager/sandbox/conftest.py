"""One sandbox for each test module and each rung that this user has here (test_ladder shows the others)."""

import asyncio
import contextlib
import functools
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import Exit, Job, Limits, PythonJob
from services.cpu_manager.sandbox.rungs import NoSandboxError, Rung
from tests.services.cpu_manager.sandbox.cells import CORE, Attack, nothing_left


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sandbox" in metafunc.fixturenames:
        metafunc.parametrize("sandbox", available_rungs(), ids=str, indirect=True, scope="module")
    elif "rung" in metafunc.fixturenames:
        metafunc.parametrize("rung", available_rungs(), ids=str)


def available_rungs() -> list[Rung]:
    """Return the rungs that this user has here, best first."""
    return [rung for rung, reason in rung_failures().items() if not reason]


@functools.cache
def rung_failures() -> dict[Rung, str]:
    """Return every rung with the reason why this user does not have it here; empty if it works."""

    async def reason(rung: Rung) -> str:
        with passable() as folder:
            try:
                made = await LocalSandbox.create(rung=rung, scratch=folder / "scratch")
            except NoSandboxError as error:
                return str(error).splitlines()[1].strip()
            await made.close()
            return ""

    async def all_reasons() -> dict[Rung, str]:
        return {rung: await reason(rung) for rung in Rung}

    return asyncio.run(all_reasons())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(
    request: pytest.FixtureRequest,
) -> AsyncIterator[LocalSandbox]:
    with passable() as folder:
        made = await LocalSandbox.create(rung=request.param, scratch=folder / "scratch")
        yield made
        await made.close()


@contextlib.contextmanager
def passable() -> Iterator[Path]:
    """Make a folder that the sandbox's users may pass: on the Landlock rung they use real directories.

    Pytest's own folders are closed, and every pytest that starts closes them anew.
    """
    with tempfile.TemporaryDirectory(prefix="treadletest-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.fixture
def attack(sandbox: LocalSandbox) -> Attack:
    """Run a hostile program. Then check that the sandbox works as before and nothing of the attack is left."""

    async def run(program: str | Job, **limits: float) -> Exit:
        bounds = Limits(**{"wall_s": 5.0, "memory_bytes": 256 << 20, **limits})  # type: ignore[arg-type]
        job = PythonJob(source=program, limits=bounds) if isinstance(program, str) else program
        ended = await sandbox.run(job, CORE)
        honest = await sandbox.run(PythonJob(source="print(6 * 7)"), CORE)
        assert (honest.ended_by, honest.exit_code, honest.stdout) == ("exit", 0, b"42\n"), honest
        await nothing_left(sandbox)
        return ended

    return run
