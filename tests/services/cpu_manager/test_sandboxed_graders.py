"""Without a sandbox no model-written program runs, and the node reports the reason."""

from __future__ import annotations

import pytest

from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import PythonJob
from services.cpu_manager.sandbox.rungs import NoSandboxError
from services.cpu_manager.sandboxed_graders import NoSandbox, open_graders
from services.cpu_manager.settings import CpuManagerSettings

CORES = frozenset({0})


async def test_a_node_without_a_sandbox_refuses_every_program() -> None:
    sandbox = NoSandbox("no rung holds")

    end = await sandbox.run(PythonJob(source="print(1)"), CORES)
    await sandbox.close()

    assert (end.ended_by, end.detail, end.stdout) == ("lost", "no rung holds", b"")


@pytest.fixture
def no_rung(monkeypatch: pytest.MonkeyPatch) -> NoSandboxError:
    """A machine on which no rung of the ladder holds; this one may have several."""
    error = NoSandboxError(())

    async def create(**_: object) -> LocalSandbox:
        raise error

    monkeypatch.setattr(LocalSandbox, "create", create)
    return error


async def test_it_offers_only_kinds_without_programs_and_reports_the_reason(no_rung: NoSandboxError) -> None:
    async with open_graders(CpuManagerSettings.model_validate({}), CORES) as graders:
        assert set(graders.graders) == {"noop", "sleep"}
        assert graders.labels == {"sandbox": f"none: {no_rung}"}
        assert isinstance(graders.sandbox, NoSandbox)
