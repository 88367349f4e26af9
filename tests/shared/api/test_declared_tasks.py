"""Valid tasks: each can be scheduled, stored and read again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from shared.api.tasks import Task


def declared(**stage: Any) -> Task:
    return Task.model_validate_json(json.dumps({"stages": [{"name": "a", "kind": "noop", **stage}]}))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("units", "why"),
    [
        ({"slots": [-5, 2]}, "greater than or equal to 0"),
        ({"slots": [2, 1]}, "2 is more than 1"),
        ({"slots": [1, 99_999_999]}, "less than or equal to 1024"),
        ({"": 1}, "should match pattern"),
        ({"a b\0": 1}, "should match pattern"),
    ],
)
def test_units_that_cannot_be_granted_are_refused(units: Any, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        declared(units=units)


def test_a_range_of_units_is_kept() -> None:
    assert declared(units={"slots": [1, 4]}).stages[0].cost == {"slots": (1, 4)}


@pytest.mark.parametrize("field", ["timeout_score", "trainer_resources", "max_extra_delay_s", "budget_s"])
def test_a_number_without_end_is_refused(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Task.model_validate_json(f'{{"stages":[{{"name":"a","kind":"noop"}}],"{field}":1e400}}')


def test_the_cost_of_a_worker_is_finite() -> None:
    with pytest.raises(ValidationError, match="worker_cost"):
        Task.model_validate_json('{"stages":[{"name":"a","kind":"noop","worker_cost":1e400}]}')


@pytest.mark.parametrize(
    ("kind", "params", "why"),
    [
        ("noop", {"echo": 5}, "params.echo: must be text, not a whole number"),
        ("noop", {"echo": "\ud800"}, "half of a surrogate pair"),
        ("code.asserts", {"timeout_s": -5}, "params.timeout_s: must be greater than 0"),
        ("python.function", {"extra_info": {"a": nested(200)}}, "more than 64 lists"),
        ("python.function", {"ground_truth": float("inf")}, "must be finite"),
    ],
)
def test_parameters_all_requests_share_are_checked_when_they_are_declared(kind: str, params: Any, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Task.model_validate({"stages": [{"name": "a", "kind": kind, "params": params}]})


def test_an_accepted_task_can_be_written_and_read_again() -> None:
    task = declared(kind="python.function", params={"extra_info": {"a": nested(60)}, "ground_truth": [1.5, "é"]})
    assert Task.model_validate_json(task.model_dump_json()) == task
