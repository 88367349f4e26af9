"""A hundred problems of our own in MBPP's form: the verdict is Python's, whichever part is outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cpu_manager.graders.code_asserts import CodeAssertsGrader
from services.cpu_manager.kinds import CodeAsserts
from services.cpu_manager.sandbox.local import LocalSandbox
from tests.services.cpu_manager.graders.mbpp_form import problems
from tests.services.cpu_manager.graders.sandboxes import context
from tests.services.cpu_manager.graders.test_asserts_mean_what_python_means import as_a_script, verdict_and_exception

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOST_IN_PROCESS = 34


async def test_a_hundred_problems_get_the_verdict_of_a_script(walls: LocalSandbox, tmp_path: Path) -> None:
    grader, differing, in_process = CodeAssertsGrader(), [], 0
    verdicts: dict[str, int] = {}
    for code, tests in problems():
        params = CodeAsserts(code=code, tests=tests, timeout_s=20)
        verdict = await grader.grade(params, context(walls))
        reported = verdict_and_exception(verdict)
        verdicts[reported[0]] = verdicts.get(reported[0], 0) + 1
        in_process += verdict.evidence == "in-process"
        if reported != (by_python := as_a_script(params, tmp_path)):
            differing.append((tests, reported, by_python, verdict.reason))
    assert not differing
    assert sum(verdicts.values()) >= 100
    assert min(verdicts[name] for name in ("passed", "failed", "error")) >= 8
    assert in_process <= MOST_IN_PROCESS


async def test_a_deciding_result_ends_a_running_program(walls: LocalSandbox) -> None:
    """Its second call never returns; the first one's result is sent before, is wrong, and decides."""
    code = "import time\ndef f(x):\n    if x == 2:\n        time.sleep(600)\n    return 0\n"
    params = CodeAsserts(code=code, tests="assert f(1) == 1\nassert f(2) == 2", timeout_s=120)
    verdict = await CodeAssertsGrader().grade(params, context(walls, timeout_s=120))
    assert verdict_and_exception(verdict) == ("failed", "AssertionError"), verdict


async def test_a_right_result_before_a_hang_is_no_verdict(walls: LocalSandbox) -> None:
    code = "import time\ndef f(x):\n    if x == 2:\n        time.sleep(600)\n    return 1\n"
    params = CodeAsserts(code=code, tests="assert f(1) == 1\nassert f(2) == 2", timeout_s=1)
    verdict = await CodeAssertsGrader().grade(params, context(walls))
    assert (verdict.status, verdict.score) == ("timeout", None)


async def test_arguments_are_fresh_for_each_call(walls: LocalSandbox) -> None:
    code = "def f(a, d):\n    a.append(1)\n    d[len(d)] = 1\n    return len(a) + len(d)\n"
    tests = "assert all(f([], {}) == 2 for i in range(3))"
    verdict = await CodeAssertsGrader().grade(CodeAsserts(code=code, tests=tests), context(walls))
    assert (verdict.passed, verdict.evidence) == (True, "separate")
