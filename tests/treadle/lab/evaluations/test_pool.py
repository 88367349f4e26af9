"""Jobs on worker processes: order of results, failures, and no remaining process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from treadle.lab.evaluations.pool import run_jobs
from treadle.testing.servers import clean_environment


@dataclass(frozen=True)
class Doubled:
    """A number, doubled."""

    number: int
    weight: float = 1.0

    @property
    def name(self) -> str:
        return str(self.number)

    def __call__(self) -> int:
        if self.number < 0:
            raise ValueError("numbers are not negative here")
        if self.number == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * self.number


@pytest.mark.parametrize("processes", [1, 2])
def test_results_keep_the_order_of_the_jobs_and_all_are_reported(processes: int) -> None:
    finished: list[tuple[float, str]] = []
    jobs = [Doubled(3, 1.0), Doubled(1, 5.0), Doubled(2, 3.0)]
    assert run_jobs(jobs, processes, lambda weight, name: finished.append((weight, name))) == [6, 2, 4]
    assert sorted(finished) == [(1.0, "3"), (3.0, "2"), (5.0, "1")]


def test_alone_the_heaviest_goes_first() -> None:
    finished: list[str] = []
    run_jobs([Doubled(3, 1.0), Doubled(1, 5.0), Doubled(2, 3.0)], 1, lambda _, name: finished.append(name))
    assert finished == ["1", "2", "3"]


def test_no_jobs_are_no_results() -> None:
    assert run_jobs([], 2, lambda *_: None) == []


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_of_a_job_is_raised_and_no_process_remains(processes: int) -> None:
    with pytest.raises(ValueError, match="not negative here"):
        run_jobs([Doubled(1), Doubled(-1), Doubled(2)], processes, lambda *_: None)
    assert not multiprocessing.active_children()


def test_a_worker_that_is_killed_breaks_the_run() -> None:
    with pytest.raises(BrokenProcessPool):
        run_jobs([Doubled(13), Doubled(1)], 2, lambda *_: None)
    assert not multiprocessing.active_children()


ENDLESS = """
from dataclasses import dataclass
from treadle.lab.evaluations.pool import run_jobs

@dataclass(frozen=True)
class Endless:
    name: str = "endless"
    weight: float = 1.0
    def __call__(self):
        open(f"{__import__('os').getpid()}.runs", "w").close()
        while True:
            pass

if __name__ == "__main__":
    run_jobs([Endless(), Endless()], 2, print)
"""


def eventually(holds: object, within_s: float = 60.0) -> None:
    """Wait until `holds()`; fail when it does not in time."""
    assert callable(holds)
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until, "did not come about"
        time.sleep(0.02)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    environ = {**clean_environment(), "PYTHONPATH": str(Path.cwd())}
    parent = subprocess.Popen([sys.executable, "endless.py"], cwd=tmp_path, env=environ, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: len(list(tmp_path.glob("*.runs"))) == 2)
        workers = [int(path.stem) for path in tmp_path.glob("*.runs")]
        parent.send_signal(how)
        parent.wait(60)
        eventually(lambda: not any(psutil.pid_exists(worker) for worker in workers))
    finally:
        parent.kill()
        parent.wait()
