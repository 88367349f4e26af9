from __future__ import annotations

import asyncio

import pytest

from services.cpu_manager.graders.answer_match import AnswerMatchGrader
from services.cpu_manager.graders.protocol import Verdict
from services.cpu_manager.kinds import AnswerMatch
from services.cpu_manager.sandbox.protocol import Exit, Job, PythonJob, Sandbox
from tests.services.cpu_manager.graders.sandboxes import FakeSandbox, context

pytestmark = pytest.mark.asyncio(loop_scope="session")


def no_job(job: Job) -> Exit:
    raise AssertionError(f"no job is needed, but {job} was run")


async def matched(sandbox: Sandbox, params: AnswerMatch) -> Verdict:
    return await AnswerMatchGrader().grade(params, context(sandbox))


async def test_any_of_several_gold_texts_will_do_and_no_job_is_run() -> None:
    verdict = await matched(FakeSandbox(no_job), AnswerMatch(response="The Beatles", gold=["Abba", "beatles"]))
    assert (verdict.status, verdict.passed, verdict.score) == ("ok", True, 1.0)


async def test_a_wrong_answer_is_wrong() -> None:
    verdict = await matched(FakeSandbox(no_job), AnswerMatch(response="3", gold="4", mode="number"))
    assert (verdict.status, verdict.passed, verdict.score) == ("ok", False, 0.0)


async def test_two_texts_without_a_number_are_not_equal_numbers() -> None:
    verdict = await matched(FakeSandbox(no_job), AnswerMatch(response="none", gold="nothing", mode="number"))
    assert verdict.passed is False


async def test_the_last_match_of_extract_counts(sandbox: Sandbox) -> None:
    params = AnswerMatch(response="A: 1 ... A: 2", gold="2", mode="exact", extract=r"A: (\d)")
    verdict = await matched(sandbox, params)
    assert (verdict.passed, verdict.output["extracted"]) == (True, "2")


async def test_a_response_without_a_match_is_wrong(sandbox: Sandbox) -> None:
    verdict = await matched(sandbox, AnswerMatch(response="no", gold="2", extract=r"A: (\d)"))
    assert (verdict.status, verdict.passed, verdict.output) == ("ok", False, {"extracted": None})


async def test_a_group_that_took_no_part_in_the_match_is_no_answer(sandbox: Sandbox) -> None:
    verdict = await matched(sandbox, AnswerMatch(response="x", gold="2", extract=r"x|(y)"))
    assert (verdict.status, verdict.passed) == ("ok", False)


async def test_an_exponential_pattern_ends_at_its_limit(sandbox: Sandbox) -> None:
    params = AnswerMatch(response="a" * 60 + "!", gold="2", extract=r"((?:a+)+)$")
    verdict = await AnswerMatchGrader().grade(params, context(sandbox, timeout_s=0.5))
    assert (verdict.status, verdict.score) == ("timeout", None)


async def test_an_invalid_pattern_is_refused(sandbox: Sandbox) -> None:
    verdict = await matched(sandbox, AnswerMatch(response="x", gold="2", extract="("))
    assert verdict.status == "refused"
    assert "not a regular expression (missing )" in verdict.reason


async def test_a_slow_pattern_blocks_no_other_call_and_ends_at_its_limit(sandbox: Sandbox) -> None:
    slow = "(?i)" + "[\u0100-\uffff]" * 700
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.02)
            beats += 1

    beating = asyncio.create_task(beat())
    verdict = await AnswerMatchGrader().grade(
        AnswerMatch(response="5", gold="5", extract=slow), context(sandbox, timeout_s=0.5)
    )
    beating.cancel()
    assert (verdict.status, verdict.score) == ("timeout", None)
    assert beats >= 5  # of about twenty-five: the loop was not blocked


async def test_no_gold_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one gold"):
        await matched(FakeSandbox(no_job), AnswerMatch(response="x", gold=[]))


async def test_a_lost_extraction_is_lost() -> None:
    params = AnswerMatch(response="A: 2", gold="2", extract=r"A: (\d)")
    verdict = await matched(FakeSandbox(lambda job: Exit(ended_by="lost")), params)
    assert (verdict.status, verdict.score) == ("lost", None)


async def test_neither_gold_nor_score_enter_the_walls() -> None:
    sandbox = FakeSandbox(lambda job: Exit(ended_by="lost"))
    await matched(sandbox, AnswerMatch(response="A: 2", gold="the-secret-gold", extract=r"A: (\d)"))
    (job,) = sandbox.jobs
    assert isinstance(job, PythonJob)
    assert b"the-secret-gold" not in job.payload
