"""Cancelled steps of engines: each ends in one stimulus, and what was started is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import structlog.testing

from services.gpu_manager.backends.protocol import Level
from services.gpu_manager.engine_use import NotServed
from services.gpu_manager.step_tasks import StepTasks
from shared.policy.model.chunks import Chunk
from shared.policy.serving.model import InstanceId, Stepped
from shared.runtime.clock import SYSTEM_CLOCK
from tests.services.gpu_manager.test_serving import Node

A0 = InstanceId("a", Chunk(0, 1))


class CancelledSteps:
    """Steps of one engine, and their ends."""

    def __init__(self) -> None:
        self.ended = list[Stepped]()
        self.tasks = StepTasks(SYSTEM_CLOCK, self._spawn, self.ended.append)
        self.spawned = list[asyncio.Task[None]]()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        self.spawned.append(asyncio.create_task(work, name=name))
        return self.spawned[-1]


async def _for_ever() -> Level | None:
    await asyncio.Event().wait()
    return None


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_a_cancelled_step_ends_once_and_has_failed(turns: int) -> None:
    steps = CancelledSteps()
    steps.tasks.begin(A0, "load", _for_ever())
    for _ in range(turns):
        await asyncio.sleep(0)
    steps.tasks.cancel(A0)
    await asyncio.wait(steps.spawned, timeout=5.0)
    assert [(each.step, each.outcome, each.reason) for each in steps.ended] == [("load", "failed", "it was cancelled")]


async def test_a_step_whose_backend_is_cancelled_from_within_has_failed() -> None:
    """Its task was not cancelled: a future that it awaits was."""
    steps, awaited = CancelledSteps(), asyncio.get_running_loop().create_future()

    async def load() -> Level | None:
        await awaited
        return None

    steps.tasks.begin(A0, "load", load())
    await asyncio.sleep(0)
    awaited.cancel()
    await asyncio.wait(steps.spawned, timeout=5.0)
    assert [(each.step, each.outcome) for each in steps.ended] == [("load", "failed")]


async def test_a_step_that_was_not_cancelled_for_others_reports_nothing_when_the_node_stops() -> None:
    steps = CancelledSteps()
    steps.tasks.begin(A0, "load", _for_ever())
    await asyncio.sleep(0)
    steps.spawned[0].cancel()
    await asyncio.wait(steps.spawned, timeout=5.0)
    assert steps.spawned[0].cancelled()
    assert steps.ended == []


async def _fails() -> Level | None:
    raise LookupError("a bug")


async def test_an_unexpected_error_fails_the_step_and_is_logged() -> None:
    steps = CancelledSteps()
    with structlog.testing.capture_logs() as logs:
        steps.tasks.begin(A0, "canary", _fails())
        await asyncio.wait(steps.spawned, timeout=5.0)
    (ended,) = steps.ended
    assert (ended.step, ended.outcome, ended.reason) == ("canary", "failed", "internal error: LookupError")
    (crashed,) = [each for each in logs if each["event"] == "engine_call_crashed"]
    assert (crashed["log_level"], crashed["call"]) == ("error", "canary")
    assert isinstance(crashed["exc_info"], LookupError)


async def test_a_load_whose_caller_has_gone_is_ended_for_another_service() -> None:
    node = Node()
    node.backends["a"].slow_s["prepare"] = 60.0
    with pytest.raises(NotServed):
        async with node.using("h", "a", 0.2):
            pass
    assert node.state("a") == "loading"
    async with asyncio.timeout(5.0), node.using("g", "b"):
        assert node.awake == {"b"}
    assert node.backends["a"].steps["stop"] == 1
    assert node.state("a") == "cold"
    await node.serving.stop(5.0)
