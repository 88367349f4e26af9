"""Metrics of a node: ends of attempts, existing environments, seconds of a creation, reasons of ends."""

from __future__ import annotations

from typing import get_args

import pytest
from prometheus_client import REGISTRY

from services.cpu_manager.metrics import observe
from shared.messages.outcomes import RECALLED, Finished, Outcome, Started
from shared.policy.model.results import AttemptResult, ExecutionStatus
from tests.services.cpu_manager.node_parts import NodeParts, in_environment, turns

PREFIX = "treadle_cpu_manager_"


def sample(name: str, **labels: str) -> float:
    """Sample of this process's metrics, which other tests have changed before."""
    return REGISTRY.get_sample_value(PREFIX + name, labels) or 0.0


def finished(status: ExecutionStatus, reason: str = "") -> Finished:
    return Finished(
        action="a",
        node="n",
        incarnation="1",
        epoch=1,
        attempt=1,
        stage=0,
        result=AttemptResult(status, reason=reason),
        execution_s=2.0,
    )


@pytest.mark.parametrize("status", get_args(ExecutionStatus))
def test_every_status_is_counted_and_reported(status: ExecutionStatus) -> None:
    reported: list[Outcome] = []
    report = observe(reported.append)
    before, spent = sample("attempts_total", status=status), sample("execution_seconds_sum")

    report(finished(status))

    assert reported == [finished(status)]
    assert sample("attempts_total", status=status) - before == 1
    assert sample("execution_seconds_sum") - spent == pytest.approx(2.0)


def test_a_recalled_grant_is_reported_and_not_counted() -> None:
    reported: list[Outcome] = []
    report = observe(reported.append)
    before = sample("attempts_total", status="lost")

    report(finished("lost", RECALLED))
    report(Started(action="a", node="n", epoch=1, attempt=1))

    assert (len(reported), sample("attempts_total", status="lost") - before) == (2, 0)


async def test_environments_are_counted_from_their_creation_to_their_end() -> None:
    parts = NodeParts()
    closed, made = sample("environments_ended_total", reason="closed"), "environment_creation_seconds_count"
    standing, before = sample("environments"), sample(made, runtime="local")
    parts.attempts.accept(in_environment(begins=True))
    await parts.settled()
    assert (sample("environments") - standing, sample(made, runtime="local") - before) == (1, 1)

    parts.attempts.close_environment("t")
    await turns()

    assert sample("environments") == standing
    assert sample("environments_ended_total", reason="closed") - closed == 1
