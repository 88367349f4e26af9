"""Rungs of this node, found by trying; the error if there is none; the rung without namespaces."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from services.cpu_manager.sandbox import ladder, toolchain
from services.cpu_manager.sandbox.instance import Instance
from services.cpu_manager.sandbox.ladder import choose_rung
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import PythonJob
from services.cpu_manager.sandbox.rungs import ENFORCES, Ladder, NoSandboxError, Rung, RungTrial
from services.cpu_manager.sandbox.walls import landlock
from tests.services.cpu_manager.sandbox.cells import CORE
from tests.services.cpu_manager.sandbox.conftest import available_rungs, passable, rung_failures

_REPOSITORY = Path(__file__).resolve().parents[4]


MISSING = {
    Rung.CGROUP_V2: "cgroup v2|cannot be divided|Permission denied",
    Rung.CGROUP_V1: "root alone|cgroup v1|Permission denied|Read-only",
    Rung.NAMESPACES: "unshare|mount|uid_map|setgroups|user ids",
    Rung.LANDLOCK: "Landlock ABI|cannot pass",
}
"""Missing capabilities of a host, as the message of the rung's refusal names them."""


@pytest.mark.parametrize("each", list(Rung), ids=str)
def test_each_rung_works_here_or_fails_for_a_known_reason(each: Rung) -> None:
    """The other tests of this folder run on every rung that this user has here."""
    if reason := rung_failures()[each]:
        print(f"left out here: {reason}")  # noqa: T201  # shown with -rP
        assert re.search(MISSING[each], reason), reason


def test_this_node_has_a_rung() -> None:
    assert available_rungs()


async def test_the_best_working_rung_is_chosen_and_the_reasons_of_others_are_kept(tmp_path: Path) -> None:
    sandbox = await LocalSandbox.create(scratch=tmp_path / "scratch")
    await sandbox.close()
    best = available_rungs()[0]
    assert sandbox.ladder.chosen == best
    assert all(trial.reason for trial in sandbox.ladder.trials[:-1])
    assert str(sandbox.ladder).startswith(f"sandbox rung {best} ")


def test_a_ladder_is_described_in_json() -> None:
    found = Ladder(
        Rung.NAMESPACES, (RungTrial(Rung.CGROUP_V2, "not delegated"), RungTrial(Rung.NAMESPACES, "")), 7, "me"
    )
    described = json.loads(json.dumps(found.describe()))
    assert described["rung"] == "namespaces"
    assert described["refused"] == {"cgroup-v2": "not delegated"}
    assert described["enforces"] == list(ENFORCES[Rung.NAMESPACES])


async def test_without_a_rung_the_error_lists_the_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> str:
        return "this kernel has nothing"

    monkeypatch.setattr(ladder, "_try", fails)
    with pytest.raises(NoSandboxError, match=r"this kernel has nothing(.|\n)*sysctl -w user.max_user_namespaces"):
        await LocalSandbox.create(scratch=tmp_path / "scratch")
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_an_old_landlock_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 5)
    instance = Instance(tmp_path / "scratch")
    with pytest.raises(NoSandboxError, match="cannot scope signals"):
        await choose_rung(instance, toolchain.detect(), Rung.LANDLOCK)
    instance.close()


async def test_cells_work_without_landlock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if rung_failures()[Rung.NAMESPACES]:
        pytest.skip(rung_failures()[Rung.NAMESPACES])
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    sandbox = await LocalSandbox.create(rung=Rung.NAMESPACES, scratch=tmp_path / "scratch")
    ended = await sandbox.run(
        PythonJob(source="import os; print(os.listdir('/sys') if os.path.exists('/sys') else 'ok')"), CORE
    )
    await sandbox.close()
    assert ended.stdout == b"ok\n"


_NO_NAMESPACES = """
import asyncio, os, sys
from pathlib import Path
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import PythonJob
from services.cpu_manager.sandbox.rungs import NoSandboxError
from tests.services.cpu_manager.sandbox.no_namespaces import refuse_namespaces

refuse_namespaces()

async def main():
    try:
        sandbox = await LocalSandbox.create(scratch=Path(sys.argv[1]) / "scratch")
    except NoSandboxError:
        print("refused")
        return
    cores = frozenset({min(os.sched_getaffinity(0))})
    ended = await sandbox.run(PythonJob(source="print('walled')"), cores)
    await sandbox.close()
    print(sandbox.ladder.chosen, ended.stdout.decode().strip())

asyncio.run(main())
"""


def test_without_namespaces_the_rung_is_landlock_or_nothing_runs() -> None:
    with passable() as folder:
        command = [sys.executable, "-c", _NO_NAMESPACES, str(folder)]
        done = subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == ("landlock walled" if Rung.LANDLOCK in available_rungs() else "refused"), done.stderr
