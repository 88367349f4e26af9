"""The start limit counts from the last progress, and ends even a start that always makes some."""

import os
import subprocess
import sys

from treadle.stack.start_limit import LONGEST, StartLimit, cpu_seconds

LIMIT_S = 60.0
PROGRESS_S = 3.0  # 5 % of a core over the limit


def test_a_start_without_progress_ends_at_the_limit() -> None:
    limit = StartLimit(LIMIT_S, began=100.0)
    assert limit.reached(159.9, 2.9) is None
    assert limit.reached(160.0, 2.9) == "after 60 s without progress (STACK_START_TIMEOUT=60)"


def test_the_limit_counts_from_the_last_progress() -> None:
    limit = StartLimit(LIMIT_S, began=0.0)
    assert limit.reached(50.0, PROGRESS_S) is None
    assert limit.reached(109.0, 2 * PROGRESS_S - 0.1) is None
    assert limit.reached(110.0, 2 * PROGRESS_S - 0.1) is not None


def test_a_new_process_counts_its_cpu_time_from_zero() -> None:
    limit = StartLimit(LIMIT_S, began=0.0)
    assert limit.reached(50.0, 40.0) is None
    assert limit.reached(60.0, 0.0) is None
    assert limit.reached(109.0, PROGRESS_S) is None
    assert limit.reached(168.0, PROGRESS_S) is None
    assert limit.reached(169.0, PROGRESS_S) is not None


def test_endless_progress_ends_too() -> None:
    limit = StartLimit(LIMIT_S, began=0.0)
    for second in range(int(LONGEST * LIMIT_S)):
        assert limit.reached(second, second) is None
    assert limit.reached(LONGEST * LIMIT_S, 1e6) == "after 600 s, 10 times STACK_START_TIMEOUT"


def test_cpu_time_includes_that_of_children() -> None:
    before = cpu_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True, timeout=60)
    assert cpu_seconds(os.getpid()) > before


def test_a_process_that_does_not_exist_has_no_cpu_time() -> None:
    assert cpu_seconds(None) == cpu_seconds(2**22 + 1) == 0.0
