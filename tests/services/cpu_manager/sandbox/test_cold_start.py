"""Cold start of a worker is measured by the node that starts it."""

from __future__ import annotations

import asyncio
import time
from random import Random

import pytest

from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import ExecJob, Exit, PythonJob
from services.cpu_manager.sandbox.spares import ColdStart
from tests.services.cpu_manager.sandbox.cells import CORE


def test_there_is_no_estimate_before_the_first_measurement() -> None:
    assert ColdStart().seconds is None


def test_the_estimate_is_between_the_last_and_the_longest() -> None:
    chance = Random(1)  # not hypothesis: these tests run as users who may write nothing here, too
    for _ in range(100):
        cold, longest = ColdStart(), 0.0
        for _ in range(chance.randint(1, 9)):
            one = chance.choice([0.0, 0.1, chance.uniform(0, 100)])
            cold.measured(one)
            longest = max(longest, one)
            assert cold.seconds is not None
            assert one <= cold.seconds <= longest


def test_the_estimate_rises_at_once_and_falls_slowly() -> None:
    cold = ColdStart()
    for one in (0.1, 10.1, *[0.1] * 10):
        cold.measured(one)
    assert cold.seconds == pytest.approx(0.1 + 10 * 0.75**10)


@pytest.mark.asyncio(loop_scope="module")
async def test_only_jobs_that_waited_for_their_cell_are_measured(
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
async def test_jobs_beyond_the_spares_are_measured(sandbox: LocalSandbox) -> None:
    sandbox.cold_start.seconds = None
    jobs = [sandbox.run(ExecJob(argv=("/bin/true",)), CORE) for _ in range(3)]
    ended: list[Exit] = await asyncio.gather(*jobs)
    assert [one.ended_by for one in ended] == ["exit"] * 3
    assert sandbox.cold_start.seconds is not None
