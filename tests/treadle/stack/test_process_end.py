"""A child does not outlive its parent, and a reused pid is not taken for the old process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shared.runtime.identity import Identity, identify
from treadle.stack.account import server_account
from treadle.stack.process import Launch, kill_group, start, stop
from treadle.testing.servers import clean_environment

PARENT = """
import sys, time
from treadle.stack.account import server_account
from treadle.stack.process import Launch, start
from pathlib import Path
account = server_account(Path("/nowhere")) if sys.argv[1] == "other" else None
child = start(Launch("sleep", ("/bin/sleep", "300"), {}, account=account), output=sys.stderr.fileno())
print(child.pid, flush=True)
time.sleep(300)
"""


def await_end(process: Identity) -> bool:
    deadline = time.monotonic() + 10
    while process.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not process.alive()


@pytest.mark.parametrize("whose", ["own", "other"])
def test_killing_the_parent_ends_the_child(whose: str) -> None:
    argv = [sys.executable, "-c", PARENT, whose]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=clean_environment(), cwd=Path.cwd()) as parent:
        assert parent.stdout is not None
        child = identify(int(parent.stdout.readline()))
        assert child is not None
        parent.kill()
        assert await_end(child)


def test_an_identity_is_more_than_a_pid() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert me.alive()
    assert not Identity(me.pid, me.started - 1).alive()


def test_a_zombie_is_not_running() -> None:
    process = subprocess.Popen(["/bin/true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert identify(process.pid) is None
    process.wait()


def test_a_process_that_ignores_the_stop_signal_is_killed() -> None:
    command = ("/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
    launch = Launch("stubborn", command, {"PATH": os.defpath}, grace_s=0.2)
    process = start(launch, output=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
        stop(process, launch)
    assert process.returncode == -signal.SIGKILL


def test_killing_a_group_that_is_gone_is_fine() -> None:
    process = subprocess.Popen(["/bin/true"], start_new_session=True)
    process.wait()
    kill_group(process.pid)


def test_an_ordinary_user_runs_the_servers_as_himself() -> None:
    account = server_account(Path("/nowhere"))
    assert (account.popen() == {}) == (os.geteuid() != 0)


def test_a_process_may_have_a_name_that_is_no_text() -> None:
    program = (
        r"import ctypes, sys; ctypes.CDLL(None).prctl(15, b'\xff) Z', 0, 0, 0); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = identify(process.pid)
        assert found is not None
        assert found.alive()
