"""The executor: units, cancellation, a stop with grace, and errors of ours."""

from __future__ import annotations

import asyncio

import pytest

from services.quota_manager.executor import CallExecutor
from shared.messages.grants import Granted
from shared.policy.model.results import AttemptResult
from tests.services.quota_manager.grants import grant

GRANT = grant({"url": "https://api.example/"})
SOON_S = 5.0


class Attempts:
    """Attempts that wait until they may end."""

    def __init__(self) -> None:
        self.may_end, self.cancelled = asyncio.Event(), 0

    async def attempt(self, granted: Granted) -> AttemptResult:
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return AttemptResult("ok")


async def begun(executor: CallExecutor) -> asyncio.Task[AttemptResult]:
    task = executor.start(GRANT)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_it_offers_its_kinds_and_its_calls() -> None:
    executor = CallExecutor(Attempts().attempt, calls=7, grace_s=1)
    assert executor.offer().kinds == ["http", "search.retrieve"]
    assert {name: usage.exist for name, usage in executor.resources.items()} == {"calls": 7}


async def test_a_revoked_call_ends_at_once() -> None:
    attempts = Attempts()
    task = await begun(CallExecutor(attempts.attempt, calls=1, grace_s=60))
    task.cancel()
    async with asyncio.timeout(SOON_S):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert attempts.cancelled == 1


async def test_a_stopping_node_keeps_the_answer_of_a_call_that_ends_in_time() -> None:
    attempts = Attempts()
    executor = CallExecutor(attempts.attempt, calls=1, grace_s=60)
    task = await begun(executor)
    executor.stop()
    task.cancel()
    await asyncio.sleep(0)
    attempts.may_end.set()
    async with asyncio.timeout(SOON_S):
        assert (await task).status == "ok"
    assert attempts.cancelled == 0


async def test_a_stopping_node_ends_a_call_that_takes_longer() -> None:
    attempts = Attempts()
    executor = CallExecutor(attempts.attempt, calls=1, grace_s=0.05)
    task = await begun(executor)
    executor.stop()
    task.cancel()
    async with asyncio.timeout(SOON_S):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert attempts.cancelled == 1


async def test_an_unknown_kind_is_refused() -> None:
    executor = CallExecutor(Attempts().attempt, calls=1, grace_s=1)
    result = await executor.start(grant({}, "code.run"))
    assert (result.status, result.reason) == ("refused", "this node does not execute code.run")


async def test_an_error_of_ours_is_lost_and_shows_nothing_of_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    async def broken(granted: Granted) -> AttemptResult:
        raise RuntimeError("the secret is hunter22")

    result = await CallExecutor(broken, calls=1, grace_s=1).start(GRANT)

    assert (result.status, result.reason) == ("lost", "the call failed: RuntimeError")
    written = capsys.readouterr()
    assert "hunter22" not in written.out + written.err
    assert "RuntimeError" in written.out + written.err


async def test_an_attempt_that_does_not_end_is_lost() -> None:
    executor = CallExecutor(Attempts().attempt, calls=1, grace_s=1, guard_s=0.0)
    result = await executor.start(grant({}, timeout_s=0.05))
    assert (result.status, result.reason) == ("lost", "no end 0 s after its limit of 0.05 s")
