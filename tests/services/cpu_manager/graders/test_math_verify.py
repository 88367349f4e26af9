from __future__ import annotations

import pytest

from services.cpu_manager.graders.math_verify import MathVerifyGrader
from services.cpu_manager.graders.protocol import Verdict
from services.cpu_manager.kinds import MathVerify
from services.cpu_manager.sandbox.protocol import EndedBy, Exit, PythonJob, Sandbox
from tests.services.cpu_manager.graders.sandboxes import FakeSandbox, context

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def verified(sandbox: Sandbox, response: str, gold: str, timeout_s: float = 30.0) -> Verdict:
    params = MathVerify(response=response, gold=gold, timeout_s=timeout_s)
    return await MathVerifyGrader().grade(params, context(sandbox))


@pytest.mark.parametrize(
    ("response", "gold", "passed"),
    [
        (r"so it is \boxed{\frac{1}{2}}", "0.5", True),
        (r"The answer is $x^2 + 2x + 1$.", r"(x+1)^2", True),
        ("A: 18", "18", True),
        ("first 17, then A: 18", "20 - 2 = 18\n#### 18", True),
        ("A: 17", "18", False),
        (r"\boxed{1,234}", "1234", True),
        ("no number at all", "18", False),
        ("", "18", False),
        (r"\boxed{\frac{1}{", "18", False),
        ("x" * 20_000, "18", False),
    ],
)
async def test_answers_are_compared_as_mathematics(walls: Sandbox, response: str, gold: str, passed: bool) -> None:
    verdict = await verified(walls, response, gold)
    assert (verdict.status, verdict.passed, verdict.score) == ("ok", passed, float(passed)), verdict


async def test_a_gold_that_is_no_mathematics_is_refused_and_not_scored(walls: Sandbox) -> None:
    verdict = await verified(walls, r"\boxed{1}", "")
    assert (verdict.status, verdict.score) == ("refused", None)


async def test_a_tower_of_powers_ends_at_its_limits(walls: Sandbox) -> None:
    verdict = await verified(walls, "The answer is 9^9^9^9^9 + 1/3", "18", timeout_s=1.0)
    assert verdict.passed is False


async def test_hostile_text_cannot_reach_the_interpreter(walls: Sandbox) -> None:
    response = r"\boxed{__import__('os')._exit(0)} answer is __import__('os').system('id')"
    verdict = await verified(walls, response, "18")
    assert (verdict.status, verdict.passed) == ("ok", False)


async def test_it_runs_where_the_library_is_imported_already() -> None:
    sandbox = FakeSandbox(lambda job: Exit(ended_by="lost"))
    await verified(sandbox, "1", "1")
    (job,) = sandbox.jobs
    assert isinstance(job, PythonJob)
    assert (job.harness, job.zygote) == ("math", "math")


@pytest.mark.parametrize(
    ("ended_by", "status", "passed"),
    [
        ("lost", "lost", None),
        ("exit", "refused", None),
        ("wall-limit", "timeout", False),
        ("memory-limit", "ok", False),
        ("signal", "ok", False),
    ],
)
async def test_a_parser_that_does_not_return_is_reported_as_such(
    ended_by: EndedBy, status: str, passed: bool | None
) -> None:
    verdict = await verified(FakeSandbox(lambda job: Exit(ended_by=ended_by)), "1", "1")
    assert (verdict.status, verdict.passed) == (status, passed)
