"""Reward requests with known answers, so that a test can distinguish an answer from the right answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

WORKFLOW: dict[str, Any] = {
    "stages": [
        {
            "name": "match",
            "kind": "answer.match",
            "units": {"slots": 1},
            "timeout_s": 60,
            "params": {"mode": "exact"},
        },
        {"name": "run", "kind": "code.asserts", "timeout_s": 120, "params": {"timeout_s": 60}},
    ]
}
"""A stage that costs next to nothing and lets a third pass, then a program. Limits are wide: machines are shared."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request and the only right answer to it."""

    request_id: str
    params: dict[str, Any]
    passed: bool
    stages: int
    """Number of stages that the sample reaches."""

    def line(self) -> bytes:
        """Line of a bulk call."""
        return json.dumps({"request_id": self.request_id, "params": self.params}).encode()


def mixed(count: int, *, start: int = 0) -> list[Sample]:
    """Six samples: four are wrong at the first stage, one in its program, one is right in both."""
    return [_sample(number) for number in range(start, start + count)]


def _sample(number: int) -> Sample:
    matches, right = number % 3 == 0, number % 2 == 0
    params = {
        "response": str(number),
        "gold": str(number if matches else -1),
        "code": f"def answer():\n    return {number}\n",
        "tests": f"assert answer() == {number if right else -number - 1}\n",
    }
    return Sample(f"sample-{number}", params, matches and right, 2 if matches else 1)


def check_answers(samples: Sequence[Sample], answers: Iterable[dict[str, Any]]) -> None:
    """Each sample is answered once, and right.

    Raises:
        AssertionError: naming those that are not.
    """
    found = list(answers)
    times = Counter(answer["request_id"] for answer in found)
    wanted = {sample.request_id: sample for sample in samples}
    assert not (missing := sorted(wanted.keys() - times.keys())), f"{len(missing)} unanswered: {missing[:5]}"
    assert not (strange := sorted(times.keys() - wanted.keys())), f"not requested: {strange[:5]}"
    assert not (doubled := [name for name, count in times.items() if count > 1]), f"answered twice: {doubled[:5]}"
    for answer in found:
        sample = wanted[answer["request_id"]]
        assert answer["ended"] == "ok", answer
        assert not answer.get("mask"), answer
        assert answer["passed"] is sample.passed, answer
        assert answer["score"] == float(sample.passed), answer
        assert len(answer["stages"]) == sample.stages, answer
    assert sorted(answer["index"] for answer in found) == list(range(len(samples)))
