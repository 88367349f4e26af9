"""Grants on a CPU host: exclusive cores, graders, limits, tenants."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from services.cpu_manager.graders.protocol import GradingContext, Verdict
from services.cpu_manager.grading import TenantSandbox
from services.cpu_manager.sandbox.protocol import Exit, Job, JobCut, PythonJob
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
    assert parts.units["cores"].used == 4

    parts.grader.go.set()
    await parts.settled()

    assert (parts.units["cores"].used, parts.used_when_reported[-1]) == (0, 0)


async def test_a_grader_receives_its_limit_its_tenant_and_its_sandbox(parts: NodeParts) -> None:
    parts.attempts.accept(grant(timeout_s=3.0))
    await parts.settled()

    (context,) = parts.grader.begun
    assert (context.timeout_s, context.tenant) == (3.0, "ada")
    await context.sandbox.run(PythonJob(zygote="math"), context.cores)
    (job,) = parts.sandbox.jobs
    assert isinstance(job, PythonJob)
    assert job.zygote == "math@ada"


@pytest.fixture
def cut(parts: NodeParts, monkeypatch: pytest.MonkeyPatch) -> NodeParts:
    """The grader runs a job of 1.5 CPU seconds, then one that is cut after 0.25."""

    async def run(job: Job, cores: frozenset[int]) -> Exit:
        parts.sandbox.jobs.append(job)
        if len(parts.sandbox.jobs) == 1:
            return Exit(ended_by="exit", exit_code=0, cpu_s=1.5)
        try:
            await parts.grader.go.wait()
        except asyncio.CancelledError as error:
            error.args = (JobCut(0.25),)
            raise
        raise AssertionError("it is cut")

    async def grade(params: Params, context: GradingContext) -> Verdict:
        for _ in range(2):
            await context.sandbox.run(PythonJob(source="pass"), context.cores)
        raise AssertionError("it is cut")

    monkeypatch.setattr(parts.sandbox, "run", run)
    monkeypatch.setattr(parts.grader, "grade", grade)
    return parts


async def test_a_revoked_attempt_reports_what_it_has_used(cut: NodeParts) -> None:
    cut.attempts.accept(grant())
    await turns()
    cut.attempts.revoke("a", 1)

    (outcome,) = await cut.settled()
    assert (outcome.result.status, outcome.result.usage) == ("cancelled", {"cpu_s": 1.75})


async def test_an_attempt_that_the_stop_cuts_is_lost_and_reports_what_it_has_used(cut: NodeParts) -> None:
    cut.attempts.accept(grant())
    await turns()
    await cut.attempts.stop()

    (outcome,) = cut.finished()
    result = outcome.result
    assert (result.status, result.reason, result.usage) == ("lost", "the node is stopping", {"cpu_s": 1.75})


async def test_an_attempt_that_its_guard_cuts_is_lost_and_reports_what_it_has_used(cut: NodeParts) -> None:
    cut.executor.grading.guard_s = 0.05
    cut.attempts.accept(grant(timeout_s=0.05))

    (outcome,) = await cut.settled()
    assert (outcome.result.status, outcome.result.usage) == ("lost", {"cpu_s": 1.75})


@pytest.mark.parametrize(("error", "status"), [(KeyError("a bug"), "lost"), (ValueError("no"), "refused")], ids=str)
async def test_an_attempt_whose_grader_fails_reports_what_it_has_used(
    cut: NodeParts, monkeypatch: pytest.MonkeyPatch, error: Exception, status: str
) -> None:
    async def grade(params: Params, context: GradingContext) -> Verdict:
        await context.sandbox.run(PythonJob(source="pass"), context.cores)
        raise error

    monkeypatch.setattr(cut.grader, "grade", grade)
    cut.attempts.accept(grant())

    (outcome,) = await cut.settled()
    assert (outcome.result.status, outcome.result.usage) == (status, {"cpu_s": 1.5})


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
    assert parts.units["cores"].used == 0


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
    assert parts.units["cores"].used == 0


async def test_a_large_output_is_cut_and_flagged() -> None:
    parts = NodeParts(output_bytes=100)
    parts.grader.act = lambda _, __: Verdict(status="ok", output={"stdout": "x" * 1000})
    parts.attempts.accept(grant())

    (outcome,) = await parts.settled()
    assert len(outcome.result.output) <= 100
    assert msgspec.json.decode(outcome.result.output)["truncated"] is True


# ---- tenants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tenant", "zygote"), [("default", "math"), ("ada", "math@ada"), ("bob", "math@bob")])
async def test_no_interpreter_forks_programs_of_two_tenants(parts: NodeParts, tenant: str, zygote: str) -> None:
    job = PythonJob(source="pass", zygote="math")

    await TenantSandbox(parts.sandbox, tenant).run(job, frozenset({0}))

    assert parts.sandbox.jobs == [msgspec.structs.replace(job, zygote=zygote)]
