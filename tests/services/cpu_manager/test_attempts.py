"""Every grant has exactly one outcome, and its cores are free before the outcome is reported."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from services.cpu_manager.graders.protocol import GradingContext, Verdict
from services.cpu_manager.grading import TenantSandbox
from services.cpu_manager.sandbox.protocol import PythonJob
from shared.messages.outcomes import GrantHeld, Started
from tests.services.cpu_manager.node_parts import NodeParts, Params, grant, turns


@pytest.fixture
async def parts() -> NodeParts:
    return NodeParts()


async def test_a_grant_ends_with_its_verdict(parts: NodeParts) -> None:
    def act(params: Params, context: GradingContext) -> Verdict:
        parts.clock.now += 2.5
        output = {"number": params.number, "cores": sorted(context.cores)}
        return Verdict(status="ok", passed=False, score=0.25, output=output, cpu_s=0.5, peak_memory_bytes=9)

    parts.grader.act = act
    parts.attempts.accept(grant("a", attempt=2, stage=1, epoch=3, cores=2, params=b'{"number":7}'))

    (outcome,) = await parts.settled()
    assert (outcome.action, outcome.attempt, outcome.stage, outcome.epoch) == ("a", 2, 1, 3)
    assert (outcome.node, outcome.incarnation) == ("n", "1")
    assert (outcome.result.status, outcome.result.passed, outcome.result.score) == ("ok", False, 0.25)
    assert (outcome.execution_s, outcome.result.usage["cpu_s"], outcome.result.peak_memory_bytes) == (2.5, 0.5, 9)
    assert msgspec.json.decode(outcome.result.output) == {"number": 7, "cores": [0, 1]}


async def test_cores_are_exclusive_during_an_attempt_and_free_before_its_outcome(parts: NodeParts) -> None:
    parts.grader.waits = True
    for name in ("a", "b"):
        parts.attempts.accept(grant(name, cores=2))
    await turns()
    assert [sorted(context.cores) for context in parts.grader.begun] == [[0, 1], [2, 3]]
    assert parts.cores.used == 4

    parts.grader.go.set()
    await parts.settled()

    assert (parts.cores.used, parts.used_when_reported[-1]) == (0, 0)


async def test_a_grader_receives_its_limit_its_tenant_and_its_sandbox(parts: NodeParts) -> None:
    parts.attempts.accept(grant(timeout_s=3.0))
    await parts.settled()

    (context,) = parts.grader.begun
    assert (context.timeout_s, context.tenant) == (3.0, "ada")
    await context.sandbox.run(PythonJob(zygote="math"), context.cores)
    (job,) = parts.sandbox.jobs
    assert isinstance(job, PythonJob)
    assert job.zygote == "math@ada"


async def test_a_repeated_grant_runs_once(parts: NodeParts) -> None:
    parts.grader.waits = True
    parts.attempts.accept(grant())
    parts.attempts.accept(grant())
    await turns()
    parts.grader.go.set()
    await parts.settled()
    parts.attempts.accept(grant())

    assert len(await parts.settled()) == len(parts.grader.begun) == 1


@pytest.mark.parametrize("other", [{"attempt": 2}, {"stage": 1}, {"epoch": 2}], ids=str)
async def test_another_attempt_or_stage_or_leader_is_no_repeat(parts: NodeParts, other: dict[str, Any]) -> None:
    parts.attempts.accept(grant())
    await parts.settled()
    parts.attempts.accept(grant(**other))

    assert len(await parts.settled()) == 2


async def test_a_grant_that_does_not_fit_is_lost_at_once(parts: NodeParts) -> None:
    parts.attempts.accept(grant(cores=5))

    (outcome,) = parts.finished()
    assert (outcome.result.status, outcome.result.reason) == ("lost", "5 cores granted, the node has 4")
    assert (len(parts.attempts), parts.cores.used) == (0, 0)


# ---- revoking and stopping -----------------------------------------------------------------------------------------


async def test_a_revoked_attempt_is_cancelled_and_its_cores_are_free(parts: NodeParts) -> None:
    parts.grader.waits = True
    parts.attempts.accept(grant())
    await turns()
    parts.attempts.revoke("a", 1)

    assert [one.result.status for one in await parts.settled()] == ["cancelled"]
    assert parts.used_when_reported == [0]


async def test_an_attempt_revoked_before_its_first_step_releases_its_cores(parts: NodeParts) -> None:
    parts.attempts.accept(grant(cores=4))
    parts.attempts.revoke("a", 1)

    assert [one.result.status for one in await parts.settled()] == ["cancelled"]
    assert (parts.grader.begun, parts.cores.used) == ([], 0)


@pytest.mark.parametrize(("action", "attempt"), [("a", 2), ("b", 1)])
async def test_revoking_an_unknown_attempt_changes_nothing(parts: NodeParts, action: str, attempt: int) -> None:
    parts.attempts.accept(grant())
    parts.attempts.revoke(action, attempt)

    assert [one.result.status for one in await parts.settled()] == ["ok"]


async def test_a_revocation_that_comes_too_late_leaves_the_verdict(parts: NodeParts) -> None:
    parts.attempts.accept(grant())
    await parts.settled()
    parts.attempts.revoke("a", 1)

    assert [one.result.status for one in await parts.settled()] == ["ok"]


async def test_attempts_of_a_stopping_node_are_lost_and_not_cancelled(parts: NodeParts) -> None:
    parts.grader.waits = True
    for name in ("a", "b"):
        parts.attempts.accept(grant(name))
    await turns()

    async with asyncio.timeout(20):
        await parts.attempts.stop()

    assert [(one.result.status, one.result.reason) for one in parts.finished()] == [
        ("lost", "the node is stopping")
    ] * 2
    assert (len(parts.attempts), parts.cores.used) == (0, 0)


async def test_a_grant_received_during_shutdown_is_ignored(parts: NodeParts) -> None:
    parts.grader.waits = True
    parts.attempts.accept(grant())
    await turns()
    stopping = asyncio.create_task(parts.attempts.stop())
    await asyncio.sleep(0)
    for attempt in range(2, 6):  # more than the node has cores: none of them may be queued either
        parts.attempts.accept(grant(attempt=attempt))

    async with asyncio.timeout(20):
        await stopping

    assert [(one.attempt, one.result.status) for one in parts.finished()] == [(1, "lost")]
    assert (len(parts.attempts), parts.cores.used) == (0, 0)


async def test_stopping_waits_for_the_cleanup_of_attempts(parts: NodeParts) -> None:
    cleaned = False

    async def grade(params: Params, context: GradingContext) -> Verdict:
        nonlocal cleaned
        try:
            await asyncio.Event().wait()
        finally:
            await turns()
            cleaned = True
        return Verdict(status="ok")

    parts.grader.grade = grade  # type: ignore[method-assign]  # a grader that takes its time to end
    parts.attempts.accept(grant())
    await turns()
    await parts.attempts.stop()

    assert cleaned


# ---- failures ------------------------------------------------------------------------------------------------------


def crash(params: Params, context: GradingContext) -> Verdict:
    raise KeyError("a bug")


def refuse(params: Params, context: GradingContext) -> Verdict:
    raise ValueError("these two cannot go together")


def no_json(params: Params, context: GradingContext) -> Verdict:
    return Verdict(status="ok", passed=True, score=1.0, output={"what": object()})


def too_deep(params: Params, context: GradingContext) -> Verdict:
    nest: list[Any] = []
    for _ in range(2_000):
        nest = [nest]
    return Verdict(status="ok", passed=True, score=1.0, output={"nest": nest})


@pytest.mark.parametrize(("act", "reason"), [(crash, "KeyError"), (no_json, "TypeError")])
async def test_an_exception_of_a_grader_is_our_failure_and_never_a_verdict(
    parts: NodeParts, act: Any, reason: str
) -> None:
    parts.grader.act = act
    parts.attempts.accept(grant())

    (outcome,) = await parts.settled()
    assert (outcome.result.status, outcome.result.passed, outcome.result.score) == ("lost", None, None)
    assert outcome.result.reason == f"the grader failed: {reason}"
    assert parts.cores.used == 0


async def test_an_output_that_cannot_be_encoded_is_refused_and_not_retried(parts: NodeParts) -> None:
    parts.grader.act = too_deep
    parts.attempts.accept(grant())

    (outcome,) = await parts.settled()
    assert (outcome.result.status, outcome.result.score, outcome.result.reason) == (
        "refused",
        None,
        "the output is nested too deeply",
    )


async def test_malformed_parameters_are_refused(parts: NodeParts) -> None:
    parts.grader.act = refuse
    parts.attempts.accept(grant("a"))
    parts.attempts.accept(grant("b", params=b'{"nummer":7}'))
    parts.attempts.accept(grant("c", params=b"no json"))

    outcomes = {one.action: one for one in await parts.settled()}
    assert {one.result.status for one in outcomes.values()} == {"refused"}
    assert outcomes["a"].result.reason == "these two cannot go together"
    assert "nummer" in outcomes["b"].result.reason


async def test_an_unknown_kind_is_refused(parts: NodeParts) -> None:
    parts.attempts.accept(grant(work="dance"))

    assert [(one.result.status, one.result.reason) for one in await parts.settled()] == [
        ("refused", "this node does not execute dance")
    ]


async def test_an_attempt_without_an_end_after_its_limit_is_our_failure() -> None:
    parts = NodeParts(guard_s=0.02)
    parts.grader.waits = True
    parts.attempts.accept(grant(timeout_s=0.01))

    (outcome,) = await parts.settled()
    assert (outcome.result.status, outcome.result.reason) == ("lost", "no end 0.02 s after its limit of 0.01 s")
    assert parts.cores.used == 0


async def test_a_large_output_is_cut_and_flagged() -> None:
    parts = NodeParts(output_bytes=100)
    parts.grader.act = lambda _, __: Verdict(status="ok", output={"stdout": "x" * 1000})
    parts.attempts.accept(grant())

    (outcome,) = await parts.settled()
    assert len(outcome.result.output) <= 100
    assert msgspec.json.decode(outcome.result.output)["truncated"] is True


# ---- accounts ------------------------------------------------------------------------------------------------------


async def test_an_attempt_that_runs_at_a_heartbeat_is_reported_once_as_started(parts: NodeParts) -> None:
    parts.grader.waits = True
    parts.attempts.accept(grant("a"))
    parts.attempts.report_started()
    parts.attempts.accept(grant("b", attempt=2))
    parts.attempts.report_started()
    parts.attempts.report_started()

    assert parts.reports == [
        Started(action="a", node="n", epoch=1, attempt=1),
        Started(action="b", node="n", epoch=1, attempt=2),
    ]
    await parts.attempts.stop()


async def test_an_inventory_lists_running_attempts(parts: NodeParts) -> None:
    parts.grader.waits = True
    parts.attempts.accept(grant("a", cores=2))
    parts.clock.now += 3.0
    parts.attempts.accept(grant("b", attempt=2, stage=1))

    assert parts.attempts.held_grants() == [
        GrantHeld(action="a", epoch=1, attempt=1, stage=0, units={"cores": 2}, running_s=3.0),
        GrantHeld(action="b", epoch=1, attempt=2, stage=1, units={"cores": 1}, running_s=0.0),
    ]
    parts.grader.go.set()
    await parts.settled()
    assert parts.attempts.held_grants() == []


# ---- tenants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tenant", "zygote"), [("default", "math"), ("ada", "math@ada"), ("bob", "math@bob")])
async def test_no_interpreter_forks_programs_of_two_tenants(parts: NodeParts, tenant: str, zygote: str) -> None:
    job = PythonJob(source="pass", zygote="math")

    await TenantSandbox(parts.sandbox, tenant).run(job, frozenset({0}))

    assert parts.sandbox.jobs == [msgspec.structs.replace(job, zygote=zygote)]
