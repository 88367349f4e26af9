"""Remains of a sandbox: none after it is closed, after its manager is killed, or after a sweep."""

# ruff: noqa: ASYNC240  # small local files, in tests

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from services.cpu_manager.sandbox.instance import Instance, sweep
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import ExecJob, PythonJob
from services.cpu_manager.sandbox.rungs import Rung
from services.cpu_manager.sandbox.slots import Slots
from tests.services.cpu_manager.sandbox.cells import CORE
from tests.services.cpu_manager.sandbox.conftest import passable

_REPOSITORY = Path(__file__).resolve().parents[4]


@pytest.fixture
def scratch() -> Iterator[Path]:
    with passable() as folder:
        yield folder / "scratch"


def commands_with(marker: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def until(holds: object, seconds: float = 10.0) -> bool:
    assert callable(holds)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.02)
    return bool(holds())


def init_of(pid: int, manager: int) -> int:
    """The init of the cell that a process is in: a child of a zygote, which is a child of the manager."""
    line = [pid, *(parent.pid for parent in psutil.Process(pid).parents())]
    return line[line.index(manager) - 2]


def zombies(pid: int) -> list[psutil.Process]:
    found = []
    for one in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [one] if one.status() == psutil.STATUS_ZOMBIE else []
    return found


def groups_of(name: str) -> list[Path]:
    # `os.walk` passes over a group that another test removes meanwhile; `Path.glob` of Python 3.11 raises.
    return [Path(at) for at, _, _ in os.walk("/sys/fs/cgroup") if Path(at).name == f"treadle-{name}"]


async def test_closing_leaves_no_process_directory_or_control_group(rung: Rung, scratch: Path) -> None:
    sandbox = await LocalSandbox.create(rung=rung, scratch=scratch)
    marker = f"98765.{secrets.randbelow(10**9)}"
    running = asyncio.create_task(sandbox.run(ExecJob(argv=("bash", "-c", f"sleep {marker} & sleep {marker}")), CORE))
    assert (await sandbox.run(PythonJob(source="print(1)"), CORE)).stdout == b"1\n"
    (name,) = [path.name for path in scratch.iterdir()]
    zygotes = sandbox.zygotes()
    await sandbox.close()
    await running
    assert until(lambda: not commands_with(marker))
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in zygotes.values()))
    assert list(scratch.iterdir()) == []
    assert groups_of(name) == []


async def test_a_slot_released_after_the_end_is_ignored(tmp_path: Path) -> None:
    """Waiters are notified only after everything is removed."""
    walls: Any = SimpleNamespace(namespaces=False, privileged=False)
    slots = Slots(walls, tmp_path, None)
    slot = slots.take()
    slots.stop_reuse()
    slots.close()
    slots.give(slot)
    assert list(tmp_path.iterdir()) == []


async def test_a_closed_sandbox_runs_nothing(rung: Rung, scratch: Path) -> None:
    sandbox = await LocalSandbox.create(rung=rung, scratch=scratch)
    await sandbox.close()
    await sandbox.close()
    assert (await sandbox.run(PythonJob(source="print(1)"), CORE)).ended_by == "lost"


_MANAGER = """
import asyncio, sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import ExecJob, Limits, PythonJob
from services.cpu_manager.sandbox.rungs import Rung
from services.cpu_manager.sandbox.slots import Slots

async def main(rung, scratch, marker):
    sandbox = await LocalSandbox.create(rung=Rung(rung), scratch=Path(scratch))
    cores = frozenset({min(__import__("os").sched_getaffinity(0))})
    script = f"trap '' TERM; setsid sleep {marker} & (sleep {marker} &) ; sleep {marker}"
    python = f"import subprocess; subprocess.run(['sleep', '{marker}'])"
    jobs = [ExecJob(argv=("bash", "-c", script)), PythonJob(source=python)]
    await asyncio.gather(*(sandbox.run(job, cores) for job in jobs))

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_killed_managers_processes_end_and_the_next_manager_sweeps(rung: Rung, scratch: Path) -> None:
    marker = f"98765.{secrets.randbelow(10**9)}"
    manager = subprocess.Popen([sys.executable, "-c", _MANAGER, rung, str(scratch), marker], cwd=_REPOSITORY)
    try:
        assert until(lambda: len(commands_with(f"sleep\0{marker}")) >= 4, 30)
        (name,) = [path.name for path in scratch.iterdir()]
    finally:
        manager.send_signal(signal.SIGKILL)
        manager.wait(10)
    assert until(lambda: not commands_with(marker)), "programs outlived their manager"
    assert until(lambda: not commands_with(f"inside.zygote\0{scratch}"))
    assert sweep(scratch) == [name]
    assert list(scratch.iterdir()) == []
    assert groups_of(name) == []


def test_a_sweep_ignores_running_managers(scratch: Path) -> None:
    living = Instance(scratch)
    dead = scratch / "0123456789ab"
    dead.mkdir()
    (dead / "lock").touch()
    assert sweep(scratch) == [dead.name]
    assert [path.name for path in scratch.iterdir()] == [living.name]
    living.close()


def test_a_directory_with_a_recorded_control_group_is_kept_for_the_next_sweep(scratch: Path, tmp_path: Path) -> None:
    closed = Instance(scratch)
    group = tmp_path / "group"
    group.mkdir()
    closed.record_groups([group])
    closed.close()
    assert [path.name for path in scratch.iterdir()] == [closed.name]
    assert sweep(scratch) == [closed.name]


_SUBREAPER = """
import asyncio, os, sys
from pathlib import Path
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.child_processes import become_subreaper
from services.cpu_manager.sandbox.protocol import ExecJob, PythonJob
from services.cpu_manager.sandbox.rungs import Rung

async def main(rung, scratch, marker):
    become_subreaper()
    sandbox = await LocalSandbox.create(rung=Rung(rung), scratch=Path(scratch))
    orphans = asyncio.create_task(sandbox.child_processes.reap_orphans())
    cores = frozenset({min(os.sched_getaffinity(0))})
    hidden = f"setsid sleep {marker} & (sleep {marker} &) ; setsid bash -c 'sleep {marker}; :' &"
    script = f"trap '' TERM; {hidden} sleep {marker}"
    job = asyncio.create_task(sandbox.run(ExecJob(argv=("bash", "-c", script)), cores))
    other = asyncio.create_task(sandbox.run(ExecJob(argv=("sleep", f"1{marker}")), cores))
    print((await job).ended_by, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print((await sandbox.run(PythonJob(source="print(6 * 7)"), cores)).stdout.decode(), not other.done(), flush=True)
    await sandbox.close()
    print((await other).ended_by)

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_programs_processes_end_with_the_init_of_its_cell(rung: Rung, scratch: Path) -> None:
    """Without a pid namespace the kernel does not end it: the manager, its subreaper, does."""
    marker = f"98765.{secrets.randbelow(10**9)}"
    argv = [sys.executable, "-c", _SUBREAPER, rung, str(scratch), marker]
    manager = subprocess.Popen(argv, cwd=_REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert until(lambda: len(commands_with(f"sleep\0{marker}")) >= 4 and commands_with(f"sleep\x001{marker}"), 30)
        os.kill(init_of(commands_with(f"sleep\0{marker}")[0], manager.pid), signal.SIGKILL)
        assert manager.stdout is not None
        assert manager.stdout.readline() == "lost\n"
        assert until(lambda: not commands_with(f"sleep\0{marker}"), 30), "programs outlived the init of their cell"
        assert commands_with(f"sleep\x001{marker}"), "another cell continues"
        assert until(lambda: not zombies(manager.pid), 30)
        output, _ = manager.communicate("\n", timeout=60)
    finally:
        manager.kill()
        manager.wait(10)
        for pid in commands_with(marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert output.split()[:2] == ["42", "True"]
