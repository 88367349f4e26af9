"""What a worker costs in time is measured where it is made, and only there."""

from __future__ import annotations

import asyncio
import time
from random import Random

import pytest

from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import ExecJob, Exit, PythonJob
from services.cpu_manager.sandbox.spares import ColdStart
from tests.services.cpu_manager.sandbox.cells import CORE


def test_nothing_is_known_before_a_worker_was_made() -> None:
    assert ColdStart().seconds is None


def test_it_is_never_below_the_last_nor_above_the_longest() -> None:
    chance = Random(1)  # not hypothesis: these tests run as users who may write nothing here, too
    for _ in range(100):
        cold, longest = ColdStart(), 0.0
        for _ in range(chance.randint(1, 9)):
            one = chance.choice([0.0, 0.1, chance.uniform(0, 100)])
            cold.measured(one)
            longest = max(longest, one)
            assert cold.seconds is not None
            assert one <= cold.seconds <= longest


def test_it_is_up_at_once_and_down_in_a_while() -> None:
    cold = ColdStart()
    for one in (0.1, 10.1, *[0.1] * 10):
        cold.measured(one)
    assert cold.seconds == pytest.approx(0.1 + 10 * 0.75**10)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_job_that_had_to_wait_for_its_cell_is_measured_and_one_that_found_it_waiting_is_not(
    sandbox: LocalSandbox,
) -> None:
    measured = sandbox.cold_start.seconds
    assert measured is None, "the sandbox of this module is new"
    before = time.monotonic()
    first = await sandbox.run(PythonJob(source="pass"), CORE)
    assert first.ended_by == "exit"
    began_within = time.monotonic() - before
    measured = sandbox.cold_start.seconds
    assert measured is not None
    assert 0 < measured < began_within

    await asyncio.sleep(0)  # the next cells are ordered after the answer
    assert sandbox.spares() > 0
    await sandbox.run(PythonJob(source="pass"), CORE)
    assert sandbox.cold_start.seconds == measured


@pytest.mark.asyncio(loop_scope="module")
async def test_more_jobs_at_once_than_ever_are_measured(sandbox: LocalSandbox) -> None:
    sandbox.cold_start.seconds = None
    jobs = [sandbox.run(ExecJob(argv=("/bin/true",)), CORE) for _ in range(3)]
    ended: list[Exit] = await asyncio.gather(*jobs)
    assert [one.ended_by for one in ended] == ["exit"] * 3
    assert sandbox.cold_start.seconds is not None
