"""Engines and a killed manager: they go on, are adopted, or end by themselves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from services.gpu_manager.backends.engine_folders import EngineFolders
from services.gpu_manager.backends.engine_process import EngineProcess, discard
from services.gpu_manager.backends.vllm import VllmBackend
from shared.runtime.settings import WrongSetting
from tests.services.gpu_manager.backends.engines import Engines, command, until
from tests.services.gpu_manager.backends.test_launching import KILL_S, ROOT, python, runs, started

MANAGER = """
import asyncio, sys
from pathlib import Path
from services.gpu_manager.backends.engine_folders import EngineFolders
from services.gpu_manager.backends.engine_process import EngineProcess
from services.gpu_manager.backends.launching import EngineLaunch
async def main():
    code = "import os, subprocess, time; print(os.getpid(), subprocess.Popen(['sleep', '60']).pid); time.sleep(60)"
    folders = EngineFolders(Path(sys.argv[1]), float(sys.argv[2]))
    launch = EngineLaunch((sys.executable, "-u", "-c", code), "judge", (0,))
    process = await EngineProcess.start(launch, 1234, folders.add("judge", 0, 1, 1234, "digest"))
    while not process.tail().endswith("\\n"):
        await asyncio.sleep(0.01)
    print(process.tail(), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def killed_manager(root: Path, lease_s: float) -> list[int]:
    """Start an engine by a manager that is killed then. Return the engine and its child."""
    manager = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MANAGER, str(root), str(lease_s), cwd=ROOT, stdout=subprocess.PIPE
    )
    assert manager.stdout is not None
    pids = [int(pid) for pid in (await manager.stdout.readline()).split()]
    manager.kill()
    await manager.wait()
    assert len(pids) == 2
    return pids


async def test_an_engine_outlives_a_killed_manager_and_is_adopted(tmp_path: Path) -> None:
    pids = await killed_manager(tmp_path, 60.0)
    (folder,) = EngineFolders(tmp_path).found()
    assert (folder.record.service, folder.record.port, folder.pid, folder.step) == ("judge", 1234, pids[0], "")
    process = EngineProcess.adopt(folder)
    assert process is not None
    assert process.is_running
    assert set(pids) <= process.processes()
    assert process.tail().split() == [str(pid) for pid in pids], "its output is kept"
    await process.stop(0.0, KILL_S)
    assert not any(runs(pid) for pid in pids)
    assert not EngineFolders(tmp_path).found()


async def test_the_end_of_an_adopted_engine_is_noticed_with_its_reason(tmp_path: Path) -> None:
    pids = await killed_manager(tmp_path, 60.0)
    (folder,) = EngineFolders(tmp_path).found()
    process = EngineProcess.adopt(folder)
    assert process is not None
    os.kill(pids[0], signal.SIGSEGV)
    await process.ended()
    assert "was killed by SIGSEGV" in process.end_reason()
    await process.stop(0.0, KILL_S)
    assert EngineProcess.adopt(folder) is None


async def test_without_a_manager_an_engine_ends_with_its_children_and_its_record(tmp_path: Path) -> None:
    pids = await killed_manager(tmp_path, 1.0)
    await until(lambda: not any(runs(pid) for pid in pids))
    await until(lambda: not EngineFolders(tmp_path).found())


async def test_a_renewed_lease_keeps_the_engine(tmp_path: Path) -> None:
    folders = EngineFolders(tmp_path, lease_s=1.0)
    process = await started(python("import time; print('up'); time.sleep(60)"), folders)
    renewing = asyncio.create_task(folders.renewing())
    try:
        await asyncio.sleep(2.5)
        assert process.is_running
        renewing.cancel()
        await process.ended()
        assert not process.is_running
    finally:
        await process.stop(0.0, KILL_S)


async def test_an_engine_ends_with_a_killed_guard(tmp_path: Path) -> None:
    process = await started(python("import time; time.sleep(60)"), EngineFolders(tmp_path))
    guard = process.folder.guard
    assert guard is not None
    os.kill(guard.pid, signal.SIGKILL)
    await until(lambda: not process.is_running)
    await process.stop(0.0, KILL_S)


async def test_an_engine_that_is_not_adopted_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = await killed_manager(tmp_path, 60.0)
    (folder,) = EngineFolders(tmp_path).found()
    assert await discard(folder, KILL_S) == set()
    assert not any(runs(pid) for pid in pids)
    assert not EngineFolders(tmp_path).found()


async def test_a_record_of_another_process_with_the_same_pid_is_not_adopted(tmp_path: Path) -> None:
    pids = await killed_manager(tmp_path, 60.0)
    (folder,) = EngineFolders(tmp_path).found()
    path = folder.path / "guard.json"
    original = path.read_bytes()
    for changed in ({"started": 1}, {"boot": "another"}):
        path.write_bytes(msgspec.json.encode(msgspec.json.decode(original) | changed))
        assert EngineProcess.adopt(folder) is None
    path.write_bytes(original)
    assert await discard(folder, KILL_S) == set()
    assert not any(runs(pid) for pid in pids)


async def test_a_sleeping_engine_is_adopted_asleep_and_a_cut_change_is_recorded(engines: Engines) -> None:
    first = engines.started(*command("vllm_server.py"))
    backend = VllmBackend(first)
    await backend.prepare()
    await backend.evict("asleep1")
    (folder,) = engines.folders.found()
    assert folder.step == ""
    successor = engines.started(*command("vllm_server.py"))
    assert successor.adopt(folder)
    adopted = VllmBackend(successor)
    assert await adopted.residency() == "asleep1"
    await adopted.restore()
    await adopted.canary()
    with pytest.raises(RuntimeError), successor.changing("restore"), successor.changing("inner"):
        raise RuntimeError
    assert engines.folders.found()[0].step == "restore"


async def test_one_manager_uses_a_folder(tmp_path: Path) -> None:
    async with EngineFolders(tmp_path).used():
        with pytest.raises(WrongSetting, match="another manager uses"):
            async with EngineFolders(tmp_path).used():
                pass
    async with EngineFolders(tmp_path).used():
        pass


def test_folders_of_the_operator_stay(tmp_path: Path) -> None:
    """A state folder may be one that has other content."""
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "file").write_text("content")
    ours = tmp_path / ("a" * 32)
    ours.mkdir()
    assert not EngineFolders(tmp_path).found()
    assert (tmp_path / "datasets" / "file").read_text() == "content"
    assert not ours.exists()
