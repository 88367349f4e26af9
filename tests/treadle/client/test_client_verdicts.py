from __future__ import annotations

from typing import Any

import pytest

from tests.treadle.grading.answers import answer
from treadle.client.verdicts import verdict_of
from treadle.grading.agreement import agrees, compare
from treadle.grading.format import Expected

FAILED, ERROR = {"verdict": "failed"}, {"verdict": "error"}


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"passed": True}, "passed"),
        ({"passed": False}, "failed"),
        ({"passed": False, "output": FAILED}, "failed"),
        ({"passed": False, "output": ERROR}, "error"),
        ({"passed": False, "output": [{"verdict": "error"}]}, "failed"),
        ({"passed": True, "output": ERROR}, "passed"),
        ({"passed": None, "score": 0.3}, "scored"),
        ({"passed": None, "ended": "timeout"}, "timeout"),
        ({"passed": True, "ended": "timeout", "mask": True}, "masked"),
        ({"passed": None, "ended": "node-lost"}, "masked"),
        ({"passed": None, "ended": "cancelled", "mask": True}, "masked"),
    ],
)
def test_an_answer_has_one_verdict(fields: dict[str, Any], verdict: str) -> None:
    assert verdict_of(answer("a", **fields)) == verdict


@pytest.mark.parametrize(
    ("expected", "output", "agreed"),
    [
        ("failed", FAILED, True),
        ("error", FAILED, False),
        ("error", None, True),  # the kind does not separate them
        ("timeout", None, False),
        ("passed", None, False),
        (False, ERROR, True),
        (True, ERROR, False),
    ],
)
def test_a_failed_answer_and_the_recorded_verdict(expected: Expected, output: object, agreed: bool) -> None:
    assert agrees(expected, answer("a", passed=False, output=output)) is agreed


def test_a_masked_answer_is_no_disagreement_and_no_agreement() -> None:
    answers = [
        answer("right"),
        answer("coarse", passed=False, output=FAILED),
        answer("wrong", passed=False),
        answer("lost", ended="node-lost", mask=True),
        answer("not expected"),
    ]
    agreement = compare({"right": "passed", "coarse": "error", "wrong": True, "lost": "passed"}, answers)
    assert (agreement.compared, agreement.agreed_on_passed, agreement.agreed, agreement.masked) == (3, 2, 1, 1)
    assert [(each.id, each.expected, each.got) for each in agreement.disagreements] == [
        ("coarse", "error", "failed"),
        ("wrong", True, "failed"),
    ]
