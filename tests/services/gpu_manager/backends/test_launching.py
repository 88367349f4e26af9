"""Engines as real processes: what they are given, how their ends are noticed, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from services.gpu_manager.backends import engine_guard, engine_process, launching
from services.gpu_manager.backends.engine_folders import EngineFolders
from services.gpu_manager.backends.engine_process import EngineProcess
from services.gpu_manager.backends.launching import EngineLaunch, Ports
from services.gpu_manager.backends.protocol import EngineError
from tests.services.gpu_manager.backends.engines import until

KILL_S = 20.0
ROOT = Path(__file__).parents[4]


def python(program: str, *arguments: str, env: dict[str, str] | None = None) -> EngineLaunch:
    return EngineLaunch((sys.executable, "-u", "-c", program, *arguments), "judge", (2, 3), env or {})


@asynccontextmanager
async def running(launch: EngineLaunch, port: int = 1234) -> AsyncIterator[EngineProcess]:
    with TemporaryDirectory() as root:
        process = await started(launch, EngineFolders(Path(root)), port)
        try:
            yield process
        finally:
            await process.stop(0.0, KILL_S)


async def started(launch: EngineLaunch, folders: EngineFolders, port: int = 1234) -> EngineProcess:
    return await EngineProcess.start(launch, port, folders.add("judge", 2, 2, port, "digest"))


def runs(pid: int) -> bool:
    """Return whether a process has not ended. A zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX"
    except OSError:
        return False


def descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def printed(process: EngineProcess, count: int) -> list[int]:
    """Wait for numbers in the output, one a line."""
    await until(lambda: process.tail().count("\n") >= count)
    return [int(line) for line in process.tail().split()]


def test_places_are_filled_in_and_other_braces_stay() -> None:
    launch = EngineLaunch(
        ("serve", "--port={port}", "{model}", "{devices}/{degree}", '{"a": 1}', "{ports}"), "judge", (2, 3)
    )
    assert launch.argv(8001) == ["serve", "--port=8001", "judge", "2,3/2", '{"a": 1}', "{ports}"]


def test_a_filled_in_text_is_not_filled_in_again() -> None:
    assert EngineLaunch(("{model}",), "{port}", (0,)).argv(8001) == ["{port}"]


def test_the_chunk_decides_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    env = {"CUDA_VISIBLE_DEVICES": "0", "MASTER_PORT": "{port}"}
    found = EngineLaunch(("x",), "judge", (2, 3), env).environment(8001)
    assert found["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert found["MASTER_PORT"] == "8001"
    assert found["PATH"] == os.environ["PATH"]


async def test_the_process_sees_its_devices_and_leads_a_group_of_its_own() -> None:
    program = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], os.getpgrp(), os.getpid()); time.sleep(60)"
    async with running(python(program)) as process:
        await until(lambda: process.tail().endswith("\n"))
        assert process.tail().split() == ["2,3", str(process.pid), str(process.pid)]
        assert process.is_running
        assert os.getpgrp() != process.pid


async def test_its_end_is_noticed_with_status_and_output_of_both_streams() -> None:
    program = "import sys; print('loading'); print('no such model', file=sys.stderr); sys.exit(3)"
    async with running(python(program)) as process:
        await process.ended()
        assert not process.is_running
        assert (
            process.end_reason() == "the engine ended with exit status 3; the end of its output: loading\nno such model"
        )


@pytest.mark.parametrize(("number", "name"), [(11, "SIGSEGV"), (40, "signal 40")])
async def test_a_signal_is_named(number: int, name: str) -> None:
    async with running(python(f"import os; os.kill(os.getpid(), {number})")) as process:
        await process.ended()
        assert process.end_reason() == f"the engine was killed by {name}; it printed nothing"


async def test_only_the_last_output_is_kept() -> None:
    program = "print('first'); print('x' * (1 << 20)); print('last')"
    async with running(python(program)) as process:
        await process.ended()
        await until(lambda: process.tail().endswith("last\n"))
        assert len(process.tail()) == engine_guard.TAIL_BYTES
        assert "first" not in process.tail()
        assert len(process.end_reason()) < engine_process.SHOWN_CHARS + 200


@pytest.mark.parametrize("command", [("/no/such/engine",), ("/etc/passwd",), ("a\0b",)])
async def test_a_command_that_cannot_be_executed_is_an_error(command: tuple[str, ...], tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(EngineError, match=r"cannot be executed .*; correct `command`"):
        await started(EngineLaunch(command, "judge", (0,)), EngineFolders(tmp_path))
    assert descriptors() == before
    assert not EngineFolders(tmp_path).found(), "it has no record"


async def test_stop_lets_it_end_by_itself() -> None:
    program = """
import signal, sys, time
def end(*_):
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("up")
time.sleep(60)
"""
    async with running(python(program)) as process:
        await until(lambda: "up" in process.tail())
        await process.stop(20.0, KILL_S)
        assert "exit status 0" in process.end_reason()


async def test_stop_kills_one_that_ignores_sigterm() -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)"
    async with running(python(program)) as process:
        await until(lambda: "up" in process.tail())
        await process.stop(0.2, KILL_S)
        assert "killed by SIGKILL" in process.end_reason()
        await process.ended()
        await process.stop(0.2, KILL_S)


async def test_stop_ends_one_that_is_stopped_by_a_signal() -> None:
    async with running(python("import time; print('up'); time.sleep(60)")) as process:
        await until(lambda: "up" in process.tail())
        os.kill(process.pid, signal.SIGSTOP)
        await process.stop(0.2, KILL_S)
        assert not process.is_running


IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
CHILDREN = {
    "in its group": "subprocess.Popen([sys.executable, '-c', code])",
    "in a session of its own": "subprocess.Popen([sys.executable, '-c', code], start_new_session=True)",
    "in its group, without its environment": "subprocess.Popen([sys.executable, '-c', code], env={})",
}


@pytest.mark.parametrize("how", CHILDREN)
@pytest.mark.parametrize("dies", [False, True], ids=["it runs", "it has died"])
async def test_stop_kills_children_of_children(how: str, dies: bool) -> None:
    child = f"import subprocess, sys; code = {IGNORES!r}; print({CHILDREN[how]}.pid); import time; time.sleep(60)"
    program = f"import os, subprocess, sys; p = subprocess.Popen([sys.executable, '-u', '-c', {child!r}]); print(p.pid)"
    program += "; import time; time.sleep(60)"
    async with running(python(program)) as process:
        pids = await printed(process, 2)
        assert all(runs(pid) for pid in pids)
        assert set(pids) <= process.processes()
        if dies:
            os.kill(process.pid, signal.SIGKILL)
            await process.ended()
            await until(lambda: not any(runs(pid) for pid in pids))  # its guard kills what it left
        await process.stop(0.2, KILL_S)
        assert not any(runs(pid) for pid in pids)
        assert not process.processes()


async def test_stop_leaves_other_engines_alone() -> None:
    program = "import time; print('up'); time.sleep(60)"
    async with running(python(program)) as process, running(python(program), 1235) as other:
        await until(lambda: "up" in process.tail() and "up" in other.tail())
        await process.stop(0.2, KILL_S)
        assert other.is_running


async def test_a_cancelled_stop_can_be_repeated() -> None:
    async with running(python(IGNORES.replace("time.sleep", "print('up'); time.sleep"))) as process:
        await until(lambda: "up" in process.tail())
        stop = asyncio.create_task(process.stop(60.0, KILL_S))
        await asyncio.sleep(0.05)
        stop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stop
        await process.stop(0.0, KILL_S)
        assert not process.is_running


def test_an_engine_inherits_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    kept = {
        "PATH": "/bin", "HOME": "/root", "LANG": "C", "LC_ALL": "C", "TMPDIR": "/tmp", "LD_LIBRARY_PATH": "/cuda",
        "CUDA_HOME": "/cuda", "NVIDIA_VISIBLE_DEVICES": "all", "HF_HOME": "/hf", "PYTHONPATH": "/p",
        "VIRTUAL_ENV": "/venv", "VLLM_USE_V1": "1", "SGLANG_X": "1", "TREADLE_SERVICE": "gpu_manager",
    }  # fmt: skip
    secret = {
        "TREADLE_REDIS_URL": "redis://:secret@host", "TREADLE_DATABASE_URL": "postgresql://u:secret@host/db",
        "GPU_MANAGER_ENGINE_KEY": "secret", "AWS_SECRET_ACCESS_KEY": "secret", "HTTPS_PROXY": "http://u:secret@proxy",
        "OPENAI_API_KEY": "secret",
    }  # fmt: skip
    for name, value in (kept | secret).items():
        monkeypatch.setenv(name, value)
    chunk = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2,3"}
    launch = EngineLaunch(("x",), "judge", (2, 3), {"OPENAI_API_KEY": "its own"})
    assert launch.environment(8001) == kept | chunk | {"OPENAI_API_KEY": "its own"}


async def test_nothing_is_left_open_after_many_starts() -> None:
    before = descriptors()
    for _ in range(5):
        async with running(python("print('up')")) as process:
            await process.ended()
    assert descriptors() == before


def test_ports_differ_and_are_free() -> None:
    ports = Ports()
    taken = [ports.take() for _ in range(50)]
    assert len(set(taken)) == 50
    assert all(port in launching.PORTS for port in taken)
    for port in taken:
        with socket.create_server(("127.0.0.1", port)):
            pass


LISTENERS: dict[str, Callable[[int], socket.socket]] = {
    "loopback": lambda port: socket.create_server(("127.0.0.1", port)),
    "every address": lambda port: socket.create_server(("", port)),
}


@pytest.mark.parametrize("where", LISTENERS)
def test_a_port_in_use_is_not_taken(where: str) -> None:
    first = Ports().take()
    with LISTENERS[where](first), pytest.raises(EngineError, match=f"no port from {first} to {first} is free"):
        Ports(range(first, first + 1)).take()


def test_a_released_port_can_be_taken_again() -> None:
    first = Ports().take()
    ports = Ports(range(first, first + 1))
    assert ports.take() == first
    with pytest.raises(EngineError):
        ports.take()
    for _ in range(2):
        ports.release(first)
    assert ports.take() == first
