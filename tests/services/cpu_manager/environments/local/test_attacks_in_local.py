"""Attacks of an environment's programs on their walls, their manager and other environments, on every rung."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from services.cpu_manager.environments.local.runtime import CellEnvironment, LocalRuntime
from services.cpu_manager.sandbox.usage import pid_of
from tests.services.cpu_manager.environments.local.acting import (
    CORE,
    SMALL,
    act,
    cpu_s_of,
    found,
    in_background,
    output_of,
    until,
    until_gone,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
_REPOSITORY = Path(__file__).resolve().parents[5]


async def test_an_environment_sees_nothing_of_another(runtime: LocalRuntime, environment: CellEnvironment) -> None:
    other = await runtime.create("other", SMALL, CORE)
    await in_background(other, "in-the-other")
    await output_of(other, "echo secret > /tmp/secret")
    seen = await output_of(environment, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls -A /tmp /dev/shm; ipcs | wc -l")
    assert "in-the-other" not in seen
    assert "secret" not in seen
    await other.close()


async def test_the_host_is_not_there(environment: CellEnvironment) -> None:
    assert (
        await output_of(environment, "ls /sys /run /var/run /home 2>/dev/null; cat /etc/shadow 2>/dev/null; true") == ""
    )
    assert not (await act(environment, "read", path="/etc/shadow")).passed
    network = "import socket; socket.create_connection(('127.0.0.1', 80), 1)"
    assert not (await act(environment, "exec", argv=["python3", "-c", network])).passed


@pytest.mark.parametrize(
    "line",
    [
        "kill -9 1",
        "kill -STOP 1",
        "kill -INT 1; kill -TERM 1; kill -HUP 1",
        "kill -9 -1",
        "echo x > /proc/1/mem",
        "echo 1000 > /proc/1/oom_score_adj",
        "cat /proc/1/environ > /dev/null",
        "exec 5<>/proc/1/fd/0",
        "prlimit --pid 1 --nofile=3",
        "renice 19 1",
        "taskset -p 1 $$",
        "unshare -U true",
        "mount -t tmpfs none /tmp",
    ],
)
async def test_the_agent_cannot_be_reached_from_inside(environment: CellEnvironment, line: str) -> None:
    await act(environment, "bash", line=f"({line}) 2>/dev/null", session="attack")
    assert environment.alive
    assert (await act(environment, "exec", argv=["echo", "well"])).output["stdout"] == "well\n"


async def test_a_timer_does_not_resume_a_suspended_process(environment: CellEnvironment) -> None:
    program = """
import ctypes, fcntl, os, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("how", ctypes.c_int), ("_", ctypes.c_char * 48)]
event, timer = Event(None, signal.SIGCONT, 0), ctypes.c_void_p()
number = 222 if os.uname().machine == "x86_64" else 107
if libc.syscall(number, 1, ctypes.byref(event), ctypes.byref(timer)) == 0:
    every = (ctypes.c_long * 4)(0, 1000000, 0, 1000000)
    libc.syscall(number + (1 if number == 222 else 3), timer, 0, ctypes.byref(every), None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
signal.signal(signal.SIGALRM, lambda *_: None)
while True:
    pass
"""
    await in_background(environment, "will-not-wake", program)
    (waker,) = found("will-not-wake")
    before = cpu_s_of(waker)
    await asyncio.sleep(0.3)
    assert cpu_s_of(waker) == before


async def test_files_stay_within_their_size(environment: CellEnvironment) -> None:
    end = await act(environment, "exec", argv=["dd", "if=/dev/zero", "of=big", "bs=1M", "count=100"])
    assert not end.passed
    assert int(await output_of(environment, "du -sm . | cut -f1")) <= SMALL.disk_mb
    assert "No space left" in (await act(environment, "write", path="/tmp/x/y", content="z" * (7 << 20))).reason
    assert (await act(environment, "list", path="/tmp/x")).output["entries"] == []


async def test_processes_stay_within_their_number(environment: CellEnvironment) -> None:
    count = """
import os, signal
children = []
try:
    while True:
        child = os.fork()
        if not child:
            signal.pause()
        children.append(child)
except OSError:
    print(len(children))
for child in children:
    os.kill(child, 9)
"""
    end = await act(environment, "exec", argv=["python3", "-c", count])
    assert 32 < int(end.output["stdout"]) < SMALL.pids


async def test_an_agent_that_lies_costs_only_its_own_environment(runtime: LocalRuntime) -> None:
    environment = await runtime.create("liar", SMALL, CORE)
    agent = pid_of(environment.handle.pidfd)
    assert await output_of(environment, "echo well") == "well"
    os.kill(agent, 9)
    environment.handle.release()
    await until(lambda: not environment.alive, "its end was not seen")
    assert (await act(environment, "exec", argv=["true"])).ended_by == "lost"
    other = await runtime.create("honest", SMALL, CORE)
    assert await output_of(other, "echo well") == "well"
    await other.close()


_MANAGER = """
import asyncio, sys
from pathlib import Path
from services.cpu_manager.environments.local.runtime import LocalRuntime
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.rungs import Rung
from shared.messages.environments import EnvironmentSpec
from services.cpu_manager.kinds import EnvBash

async def main():
    sandbox = await LocalSandbox.create(rung=Rung(sys.argv[1]), scratch=Path(sys.argv[2]))
    runtime = await LocalRuntime.open(sandbox)
    core = frozenset({int(sys.argv[3])})
    environment = await runtime.create("left", EnvironmentSpec(memory_mb=64), core)
    line = "sh -c 'echo > up; while :; do :; done' left-by-a-dead-manager & until [ -e up ]; do :; done"
    await environment.act("env.bash", EnvBash(line=line), core, 20)
    print("made", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_killed_managers_frozen_environments_die_with_it(runtime: LocalRuntime, tmp_path: Path) -> None:
    rung = runtime._cells._resources.ladder.chosen
    scratch = runtime._cells._resources.instance.directory.parent.parent / f"killed-{rung}"
    command = [sys.executable, "-c", _MANAGER, rung.value, str(scratch), str(min(CORE))]
    manager = await asyncio.create_subprocess_exec(*command, cwd=_REPOSITORY, stdout=asyncio.subprocess.PIPE)
    assert manager.stdout is not None
    assert await manager.stdout.readline() == b"made\n"
    assert found("left-by-a-dead-manager")
    manager.kill()
    await manager.wait()
    await until_gone("left-by-a-dead-manager")


async def test_writing_to_the_shells_own_descriptors_costs_no_environment(environment: CellEnvironment) -> None:
    line = "for fd in {3..255}; do printf x >&$fd; printf '0\\n' >&$fd; done 2>/dev/null; echo on; (exit 7)"
    end = await act(environment, "bash", line=line)
    assert (end.ended_by, end.output["exit_code"], end.output["output"][-3:]) == ("done", 7, "on\n"), end
    child = "import glob, os\nfor path in glob.glob('/proc/%d/fd/*' % os.getppid()):\n"
    child += "  try: os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), b'0\\n')\n  except OSError: pass"
    await act(environment, "write", path="child.py", content=child)
    end = await act(environment, "bash", line="python3 child.py; echo kid; (exit 7)")
    assert (end.ended_by, end.output["exit_code"], end.output["output"][-4:]) == ("done", 7, "kid\n"), end
    assert await output_of(environment, "echo still") == "still"
