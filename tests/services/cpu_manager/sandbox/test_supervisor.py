"""Init's loop beside a program, without a filter: its packets, and its counts of tasks."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cpu_manager.sandbox.inside import supervisor
from services.cpu_manager.sandbox.inside.supervisor import SeccompSupervisor

ROOT = Path(__file__).parents[4]
SET_LIMITS = """
import resource
from services.cpu_manager.sandbox.inside import program, wire
resource.setrlimit(resource.RLIMIT_NPROC, (500, 500))
program.set_limits(wire.StartRequest((0,), 1 << 20, 0, 5, 64, 100_000), own=1)
print(resource.getrlimit(resource.RLIMIT_NPROC))
"""


@pytest.fixture
def init(tmp_path: Path) -> Iterator[SeccompSupervisor]:
    before = signal.getsignal(signal.SIGCHLD)
    made = SeccompSupervisor(str(tmp_path))
    made.start()
    yield made
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, before)
    for stream in (made._ours, made._theirs):
        stream.close()
    for descriptor in (made._wakeup_reader, made._wakeup_writer):
        os.close(descriptor)


def test_the_packet_of_a_program_that_ended_first_does_not_reach_the_next(init: SeccompSupervisor) -> None:
    opened = len(list(Path("/proc/self/fd").iterdir()))
    reader, writer = os.pipe()
    init.send_listener(reader, 20)
    init.wait(lambda: True, lambda: None)
    os.close(writer)
    assert not supervisor._is_readable(init._ours)
    assert (init._listener, len(list(Path("/proc/self/fd").iterdir()))) == (-1, opened)


@pytest.mark.parametrize(("counts", "excess"), [([21, 20], 0), ([21, 21], 21), ([20, 20], 0)])
def test_an_excess_is_counted_again_after_the_dead_are_reaped(
    init: SeccompSupervisor, monkeypatch: pytest.MonkeyPatch, counts: list[int], excess: int
) -> None:
    left, killed = list(counts), []
    monkeypatch.setattr(supervisor, "tasks_below", lambda _, enough: left.pop(0) if left else 0)
    reader, writer = os.pipe()
    init.send_listener(reader, 20)
    init.wait(lambda: not left, lambda: killed.append(True))
    os.close(writer)
    assert (init.excess_tasks, bool(killed)) == (excess, excess > 0)


def test_the_limit_of_processes_is_at_most_the_users_own() -> None:
    if resource.getrlimit(resource.RLIMIT_NPROC)[1] in range(500):
        pytest.skip("this user's own limit is lower")
    done = subprocess.run([sys.executable, "-c", SET_LIMITS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "(500, 500)\n"
