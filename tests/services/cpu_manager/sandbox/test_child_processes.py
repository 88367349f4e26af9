"""Orphans of a manager: a real subreaper with real children, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

BEGIN = """
import asyncio, os, signal, subprocess, sys, time
from pathlib import Path
from services.cpu_manager.sandbox.child_processes import ChildProcesses, become_subreaper, reap

become_subreaper()
child_processes = ChildProcesses()

def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()[0]
    except FileNotFoundError:
        return "gone"

def until(wanted, pid):
    deadline = time.monotonic() + 20
    while state(pid) != wanted:
        assert time.monotonic() < deadline, (wanted, state(pid))
        time.sleep(0.01)

def forked_twice(command):
    starter = subprocess.Popen(["sh", "-c", command + " >/dev/null & echo $!"], stdout=subprocess.PIPE,
                               start_new_session=True)
    return starter, int(starter.communicate()[0])
"""


def run(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script], timeout=60, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_an_orphan_without_owner_is_killed_and_reaped() -> None:
    run("""
for command in ("sleep 300", "setsid sleep 300"):
    starter, orphan = forked_twice(command)
    assert child_processes.reap_once() == [orphan]
    until("Z", orphan) if state(orphan) != "gone" else None
    child_processes.reap_once()
    assert state(orphan) == "gone"
""")


def test_an_orphan_with_an_invalid_name_is_killed_and_reaped() -> None:
    run("""
program = r"import ctypes, time; ctypes.CDLL(None).prctl(15, b'\\xff', 0, 0, 0); time.sleep(300)"
starter, orphan = forked_twice(f'setsid {sys.executable} -c "{program}"')
deadline = time.monotonic() + 20
while Path(f"/proc/{orphan}/comm").read_bytes() != b"\\xff\\n":
    assert time.monotonic() < deadline
    time.sleep(0.01)
assert child_processes.reap_once() == [orphan]
while Path(f"/proc/{orphan}").exists():
    assert time.monotonic() < deadline
    child_processes.reap_once()
""")


def test_an_orphan_in_the_session_of_one_that_forks_has_an_owner() -> None:
    run("""
starter, zygote = forked_twice("sleep 300")
child_processes.add_session(starter.pid, forks=True)
assert child_processes.reap_once() == []
pidfd = os.pidfd_open(zygote)
os.kill(zygote, signal.SIGKILL)
until("Z", zygote)
assert child_processes.reap_once() == [], "its owner waits for it"
reap(pidfd)
assert state(zygote) == "gone"
""")


def test_a_child_of_a_session_without_forks_is_an_orphan() -> None:
    run("""
starter, orphan = forked_twice("sleep 300")
child_processes.add_session(starter.pid, forks=False)
assert child_processes.reap_once() == [orphan]
""")


def test_ordinary_children_are_reaped_by_their_owners() -> None:
    run("""
child = subprocess.Popen(["sh", "-c", "exit 7"])
until("Z", child.pid)
assert child_processes.reap_once() == []
assert child.wait() == 7
sleeper = subprocess.Popen(["sleep", "300"])
assert child_processes.reap_once() == [] == child_processes.reap_once()
assert sleeper.poll() is None
sleeper.kill()

async def asynchronous():
    process = await asyncio.create_subprocess_exec("sh", "-c", "sleep 0.2; exit 5")
    while process.returncode is None:
        child_processes.reap_once()
        await asyncio.sleep(0.01)
    assert process.returncode == 5

asyncio.run(asynchronous())
""")


def test_an_ended_orphan_in_the_managers_own_session_is_reaped_at_the_second_check() -> None:
    run("""
starter = subprocess.run(["sh", "-c", "sleep 0 >/dev/null & echo $!"], stdout=subprocess.PIPE)
orphan = int(starter.stdout)
until("Z", orphan) if state(orphan) != "gone" else None
child_processes.reap_once()
child_processes.reap_once()
assert state(orphan) == "gone"
""")
