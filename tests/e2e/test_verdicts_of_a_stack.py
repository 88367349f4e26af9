"""Verdicts through a whole stack and its public routes: forged ones, ended graders, and a machine at full load.

`TREADLE_REGRADE=1000 pytest tests/e2e/test_verdicts_of_a_stack.py -k full_load` is the long form of the last one.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.e2e.proxy_calls import call, open_batch, results
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

DATA: Final = Path(os.environ.get("TREADLE_DATA", "../shared/data"))
REGRADE: Final = int(os.environ.get("TREADLE_REGRADE", "60"))
CALLERS_PER_CORE: Final = 4
SEED: Final = 20_261_122

FORGED: Final = """
class Always:
    def __eq__(self, other):
        return True
    __hash__ = None
def f(x):
    return Always()
"""
SPLIT: Final = "assert f(1) == 2\nassert f(2) == 3"
WHOLE: Final = "import random\nx = random.randint(1, 9)\nassert f(x) == x + 1"
"""The expected value is made while the tests run, so it cannot stay outside."""
JUDGE: Final = "def compute_score(solution_str, **_):\n    exec(solution_str)\n    return 1.0\n"


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with temporary_home() as root, running_stack(root) as running:
        yield running


@pytest.fixture
async def http(stack: RunningStack) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(stack.urls["proxy"], timeout=aiohttp.ClientTimeout(total=300)) as session:
        yield session


async def graded(http: aiohttp.ClientSession, code: str, tests: str, **params: Any) -> dict[str, Any]:
    body = {"kind": "code.asserts", "params": {"code": code, "tests": tests, **params}}
    status, answer = await call(http, "POST", "/v1/actions?wait=60", json=body)
    assert status == 200, answer
    return dict(answer)


@pytest.mark.parametrize(
    ("code", "tests", "score", "evidence"),
    [
        ("def f(x): return x + 1", SPLIT, 1.0, "separate"),
        (FORGED, SPLIT, 0.0, "separate"),
        ("def f(x): return x + 1", WHOLE, 1.0, "in-process"),
        (FORGED, WHOLE, 1.0, "in-process"),
    ],
    ids=["right", "forged", "right, not split", "forged, not split"],
)
async def test_an_answer_carries_its_evidence(
    http: aiohttp.ClientSession, code: str, tests: str, score: float, evidence: str
) -> None:
    answer = await graded(http, code, tests)
    assert (answer["score"], answer["evidence"]) == (score, evidence), answer


async def test_other_kinds_carry_the_evidence_they_have(http: aiohttp.ClientSession) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "code.stdio": {"code": "print(input())", "tests": [{"stdin": "a", "stdout": "a"}]},
        "answer.match": {"response": "a", "gold": "a"},
        "python.function": {"module": JUDGE, "solution_str": "pass"},
        "code.run": {"code": "print(1)"},
        "noop": {},
    }
    found = {}
    for kind, params in bodies.items():
        _, answer = await call(http, "POST", "/v1/actions?wait=60", json={"kind": kind, "params": params})
        assert answer["ended"] == "ok", answer
        found[kind] = answer.get("evidence")
    assert found == {
        "code.stdio": "separate",
        "answer.match": "separate",
        "python.function": "in-process",
        "code.run": None,
        "noop": None,
    }


async def test_a_sample_that_ends_its_grader_has_the_stages_score_and_is_not_masked(
    http: aiohttp.ClientSession,
) -> None:
    plain = {"name": "judge", "kind": "python.function", "params": {"module": JUDGE}}
    scored = {**plain, "error_score": -1.5, "exception_score": -0.5}
    for task, stage in (("plain", plain), ("scored", scored)):
        status, view = await call(http, "PUT", f"/v1/tasks/{task}", json={"stages": [stage]})
        assert status == 200, view
    solutions = {"right": "pass", "exits": "import os; os._exit(0)", "leaves": "raise SystemExit", "raises": "1 / 0"}
    got: dict[str, dict[str, Any]] = {}
    for task in ("plain", "scored"):
        batch = await open_batch(http, task, size=len(solutions))
        lines = [json.dumps({"request_id": name, "params": {"solution_str": s}}) for name, s in solutions.items()]
        await call(http, "POST", f"/v1/rewards/bulk?batch={batch}", data="\n".join(lines))
        answers = await results(http, batch)
        got[task] = {a["request_id"]: (a["ended"], a.get("score"), a.get("mask", False)) for a in answers}
    assert got == {
        "plain": {
            "right": ("ok", 1.0, False),
            "exits": ("ok", 0.0, False),
            "leaves": ("ok", 0.0, False),
            "raises": ("refused", None, True),
        },
        "scored": {
            "right": ("ok", 1.0, False),
            "exits": ("ok", -1.5, False),
            "leaves": ("ok", -1.5, False),
            "raises": ("ok", -0.5, False),
        },
    }


@pytest.mark.data
@pytest.mark.slow
async def test_recorded_passes_pass_again_at_full_load(http: aiohttp.ClientSession) -> None:
    """Four callers a core, each with the next program as soon as its last one is answered."""
    if not DATA.exists():
        pytest.skip(f"{DATA} is not there; set TREADLE_DATA to the directory that holds code/")
    problems = {row["task_id"]: row for row in rows("humaneval_problems")}
    passed = [row for row in rows("humaneval_generations") if row["verdict"] == "passed"]
    queue = random.Random(SEED).sample(passed, REGRADE)
    changed: list[tuple[str, int, dict[str, Any]]] = []

    async def caller() -> None:
        while queue:
            row = queue.pop()
            problem = problems[row["task_id"]]
            body = row["completion"] if row["form"] == "body" else "    pass\n\n" + row["completion"]
            answer = await graded(http, problem["prompt"] + body, problem["test"], entry_point=problem["entry_point"])
            if answer.get("passed") is not True:
                changed.append((row["task_id"], row["sample"], answer))

    async with asyncio.TaskGroup() as callers:
        for _ in range(CALLERS_PER_CORE * len(os.sched_getaffinity(0))):
            callers.create_task(caller())
    assert not changed


def rows(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / "code" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
