from __future__ import annotations

import asyncio

import msgspec

from services.cpu_manager.graders.registry import build_graders
from services.cpu_manager.kinds import PLAIN, Noop, Sleep
from services.cpu_manager.sandbox.protocol import Exit
from tests.services.cpu_manager.graders.sandboxes import LANGUAGES, FakeSandbox, context


def test_every_kind_has_its_grader_under_its_name() -> None:
    graders = build_graders(LANGUAGES)
    assert list(graders) == list(PLAIN)
    for kind, grader in graders.items():
        assert (grader.kind, grader.params) == (kind, PLAIN[kind].params)


def unused() -> FakeSandbox:
    return FakeSandbox(lambda job: Exit(ended_by="lost"))


async def test_noop_answers_with_its_echo_and_runs_no_job() -> None:
    sandbox = unused()
    verdict = await build_graders(LANGUAGES)["noop"].grade(Noop(echo="hello"), context(sandbox))
    assert (verdict.status, verdict.output, sandbox.jobs) == ("ok", {"echo": "hello"}, [])


async def test_sleep_sleeps_and_can_be_cancelled() -> None:
    sandbox = unused()
    sleep = build_graders(LANGUAGES)["sleep"]
    assert (await sleep.grade(Sleep(seconds=0), context(sandbox))).status == "ok"
    sleeping = asyncio.create_task(sleep.grade(Sleep(seconds=3600), context(sandbox, timeout_s=7200)))
    await asyncio.sleep(0)
    sleeping.cancel()
    await asyncio.wait([sleeping], timeout=10)
    assert sleeping.cancelled()


async def test_a_sleep_longer_than_its_stage_is_a_timeout() -> None:
    sandbox = unused()
    verdict = await build_graders(LANGUAGES)["sleep"].grade(Sleep(seconds=3600), context(sandbox, timeout_s=0.01))
    assert (verdict.status, verdict.score) == ("timeout", None)


def test_verdicts_survive_the_wire() -> None:
    verdict = asyncio.run(build_graders(LANGUAGES)["noop"].grade(Noop(echo="x"), context(unused())))
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=type(verdict)) == verdict
