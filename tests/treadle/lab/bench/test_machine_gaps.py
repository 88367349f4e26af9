"""A busy program sees the times for which it did not run."""

import os
import signal
import threading
import time

from treadle.lab.bench.machine_gaps import LEAST_S, machine_gaps, spin


def test_a_program_that_is_stopped_sees_a_gap() -> None:
    """A signal handler that takes 50 ms stands for another process on the core."""
    before = signal.signal(signal.SIGUSR1, lambda *_: time.sleep(0.05))
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        assert max(spin(0.4)) >= 0.05
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


async def test_all_cores_are_measured() -> None:
    rate, longest = await machine_gaps("quota.machine", 0.2)
    assert (rate.name, longest.name) == ("quota.machine.gaps", "quota.machine.gap.longest")
    assert f"{len(os.sched_getaffinity(0))} cores" in rate.what
    assert (rate.value > 0) == (longest.value >= LEAST_S * 1e3)
