"""Programs that continue after the end of their first thread, the only one in most of /proc. On every rung."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from services.cpu_manager.environments.local.runtime import CellEnvironment, LocalRuntime
from services.cpu_manager.sandbox.usage import pid_of, process_tree
from shared.messages.environments import EnvironmentSpec
from tests.services.cpu_manager.environments.local.acting import CORE, act, output_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXIT = f"ctypes.CDLL(None).syscall({60 if os.uname().machine == 'x86_64' else 93}, 0)"
"""System call of pthread_exit in `main`."""

_WAKER = f"""
import ctypes, mmap, os, signal, threading
libc, size = ctypes.CDLL(None), 300 << 20
def work():
    if libc.syscall({56 if os.uname().machine == "x86_64" else 220}, signal.SIGCONT, 0, 0, 0, 0) == 0:
        held = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        held.madvise(15)  # no huge pages: dying takes its time
        for at in range(0, size, 4096):
            held[at] = 1
        open("ready", "w")
        while not os.path.exists("go"):
            pass
        os._exit(0)
    while True:
        pass
threading.Thread(target=work).start()
{EXIT}
"""
"""The end of its child sends it SIGCONT instead of SIGCHLD."""


def cpu_s_of_all(init: int) -> float:
    """CPU time of every thread of an environment so far, except those of its agent, which still goes to sleep."""
    spent = 0
    for pid in set(process_tree(init)) - {init}:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            spent += int((thread / "schedstat").read_text().split()[0])
    return spent / 1e9


def alive_processes(init: int) -> int:
    """Number of processes of an environment, except its agent, with a thread that has not ended."""
    count = 0
    for pid in set(process_tree(init)) - {init}:
        with contextlib.suppress(OSError):
            stats = [(thread / "stat").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
            count += any(stat.rpartition(")")[2].split()[0] not in "ZX" for stat in stats)
    return count


async def test_the_end_of_a_child_does_not_resume_a_suspended_process(runtime: LocalRuntime) -> None:
    environment = await runtime.create("waker", EnvironmentSpec(memory_mb=1024, disk_mb=16, pids=64), CORE)
    try:
        await act(environment, "write", path="waker.py", content=_WAKER)
        await output_of(environment, "python3 waker.py & until [ -e ready ]; do sleep 0.05; done")
        await output_of(environment, "touch go; sleep 0.003")
        init = pid_of(environment.handle.pidfd)
        before = cpu_s_of_all(init)
        await asyncio.sleep(0.5)
        assert cpu_s_of_all(init) == before
        assert await output_of(environment, "echo well") == "well"
    finally:
        await environment.close()


async def test_a_program_without_its_first_thread_ends_at_its_limit_alone(environment: CellEnvironment) -> None:
    program = f"""
import ctypes, sys, threading, time
threading.Thread(target=time.sleep, args=(300,)).start()
print("works", flush=True)
{EXIT}
"""
    await output_of(environment, "kept=state")
    end = await act(environment, "exec", argv=["python3", "-c", program], timeout_s=1.0)
    assert (end.ended_by, end.output["stdout"]) == ("wall-limit", "works\n")
    assert await output_of(environment, "echo $kept") == "state"
    init = pid_of(environment.handle.pidfd)
    assert alive_processes(init) == 1, "its shell"
    await act(environment, "write", path="program.py", content=program)
    await output_of(environment, "(python3 program.py >began &); until [ -s began ]; do sleep 0.01; done")
    assert alive_processes(init) == 2
    assert (await act(environment, "close_session")).passed
    assert alive_processes(init) == 0
