"""Text of the report."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

import pytest
from rich.console import Console, RenderableType

from shared.policy.model.formulation import EndedAs
from tests.treadle.grading.answers import answer
from treadle.client.answers import Result
from treadle.grading.agreement import compare
from treadle.grading.render import REASONS_SHOWN, agreement_part, counted, masked_part, rewards_part
from treadle.grading.rewards import Masked, masked_of, rewards_of


def masked(*ends: tuple[EndedAs, str]) -> list[Result]:
    return [
        answer(str(place), passed=None, score=None, ended=ended, mask=True, reason=reason)
        for place, (ended, reason) in enumerate(ends)
    ]


def shown(parts: Iterable[RenderableType]) -> str:
    paper = StringIO()
    console = Console(width=200, file=paper)
    for part in parts:
        console.print(part)
    return paper.getvalue()


def test_reasons_are_shown_with_counts_the_most_frequent_first() -> None:
    no_cobol = "no toolchain for 'cobol'"
    answers = [answer("good"), *masked(("cancelled", ""), ("refused", no_cobol), ("refused", no_cobol))]
    assert masked_of(answers) == [Masked("refused", no_cobol, 2), Masked("cancelled", "", 1)]
    informative = shown(masked_part(masked_of(answers)))
    assert "No verdict  3 requests to leave out" in informative
    assert "  2 refused: no toolchain for 'cobol'\n  1 cancelled\n" in informative


@pytest.mark.parametrize("ended", ["refused", "cancelled", "expired"])
def test_refused_cancelled_and_expired_are_not_failures_of_the_mesh(ended: EndedAs) -> None:
    assert "failure" not in shown(masked_part(masked_of(masked((ended, "so it is")))))


def test_failures_of_the_mesh_are_marked() -> None:
    informative = shown(masked_part(masked_of(masked(("node-lost", "n1: silent"), ("refused", "no [bold] tool")))))
    assert "1 node-lost, a failure of the mesh: n1: silent" in informative
    assert "1 refused: no [bold] tool" in informative


def test_many_reasons_are_cut_and_the_rest_is_counted() -> None:
    ends: list[tuple[EndedAs, str]] = [("refused", str(number)) for number in range(REASONS_SHOWN + 3)]
    assert "and 3 for other reasons" in shown(masked_part(masked_of(masked(*ends))))
    assert shown(masked_part([])) == ""


def test_one_request_is_in_the_singular() -> None:
    assert [counted(number, "request") for number in (0, 1, 2, 1200)] == [
        "0 requests",
        "1 request",
        "2 requests",
        "1,200 requests",
    ]
    assert "1 request: 1 passed" in shown(rewards_part(rewards_of([answer("a")], {})))
    assert "1 of 1 recorded verdict confirmed" in shown(agreement_part(compare({"a": True}, [answer("a")])))
    both = compare({"a": True, "b": True}, [answer("a"), answer("b")])
    assert "2 of 2 recorded verdicts confirmed" in shown(agreement_part(both))
