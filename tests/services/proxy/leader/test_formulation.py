"""Cost, elasticity and duration as trainers write them: the same in tasks and in actions; clear where it is wrong."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from services.proxy.records.workflows import Workflow, plain_stages
from shared.api.requests import ActionRequest
from shared.api.tasks import Task
from shared.kinds.formulation import MOST_UNITS, Formulation, formulated
from shared.messages.actions import StageWork
from shared.policy.model.elasticity import Elasticity, by_table
from shared.runtime.errors import BadRequest

AMDAHL = Elasticity("amdahl", serial=0.05)
POWER = Elasticity("power", exponent=0.9)
TABLE = by_table({1: 1.0, 4: 0.8})

actions = msgspec.json.Decoder(ActionRequest)


def of_task(**stage: Any) -> StageWork:
    body = json.dumps({"stages": [{"name": "run", "kind": "code.run", "params": {"code": ""}, **stage}]})
    task = Task.model_validate_json(body)
    assert Task.model_validate_json(task.model_dump_json(exclude_unset=True)) == task, "kept and read again"
    (work,) = Workflow.of("ada", "t", task).resolve(msgspec.Raw(b"{}"), {})
    return work


def of_action(**action: Any) -> StageWork:
    (stage,) = plain_stages(actions.decode(json.dumps({"kind": "code.run", "params": {"code": ""}, **action}).encode()))
    return stage


@pytest.mark.parametrize("read", [of_task, of_action])
@pytest.mark.parametrize(
    ("written", "formulation", "duration_s"),
    [
        ({}, Formulation({"cores": (1, 1)}, (), None), None),
        ({"units": {"cores": 2, "mb": [1, 2]}}, Formulation({"cores": (2, 2), "mb": (1, 2)}, (), None), None),
        ({"units": {"cores": [1, 8]}, "duration_s": 12}, Formulation({"cores": (1, 8)}, (), None), 12.0),
        ({"units": {"cores": {"any_of": [8, 1, 2, 8]}}}, Formulation({"cores": (1, 8)}, (1, 2, 8), None), None),
        ({"units": {"cores": {"any_of": [4]}}}, Formulation({"cores": (4, 4)}, (), None), None),
        ({"elasticity": {}}, Formulation({"cores": (1, 1)}, (), None), None),
        ({"elasticity": {"4": 0.8, "1": 1}}, Formulation({"cores": (1, 1)}, (), TABLE), None),
        ({"elasticity": {"model": "amdahl", "serial": 0.05}}, Formulation({"cores": (1, 1)}, (), AMDAHL), None),
        ({"elasticity": {"model": "power", "exponent": 0.9}}, Formulation({"cores": (1, 1)}, (), POWER), None),
    ],
)  # fmt: skip
def test_a_formulation_is_kept_as_written(
    read: Any, written: dict[str, Any], formulation: Formulation, duration_s: float | None
) -> None:
    work = read(**written)

    assert (work.cost, work.amounts, work.elasticity) == formulation
    assert work.duration_s == duration_s


@pytest.mark.parametrize("read", [of_task, of_action])
@pytest.mark.parametrize(
    "written",
    [
        {"units": {"cores": [1, 2, 4]}},
        {"units": {"cores": [4, 1]}},
        {"units": {"cores": [-1, 1]}},
        {"units": {"cores": MOST_UNITS + 1}},
        {"units": {"cores": 1, "chunks": {"any_of": [1, 2]}}},
        {"units": {"cores": {"any_of": []}}},
        {"units": {"cores": {"any_of": [0, 1]}}},
        {"units": {"cores": {"any_of": [1, MOST_UNITS + 1]}}},
        {"units": {"cores": {"anyof": [1]}}},
        {"units": {"cores": True}},
        {"units": {"cores": 1.5}},
        {"units": {"cores": "1"}},
        {"elasticity": {"model": "magic"}},
        {"elasticity": {"model": 3}},
        {"elasticity": {"model": "amdahl"}},
        {"elasticity": {"model": "amdahl", "serial": 1.1}},
        {"elasticity": {"model": "amdahl", "serial": 0.1, "exponent": 1}},
        {"elasticity": {"model": "power", "exponent": -0.1}},
        {"elasticity": {"1": 1.5}},
        {"elasticity": {"1": 0}},
        {"elasticity": {"0": 1}},
        {"elasticity": {"many": 1}},
        {"elasticity": {"1": "fast"}},
        {"elasticity": [1]},
        {"duration_s": 0},
        {"duration_s": 100_000},
    ],
)
def test_a_senseless_formulation_is_rejected_in_both(read: Any, written: dict[str, Any]) -> None:
    (field,) = written
    with pytest.raises((ValidationError, msgspec.ValidationError, BadRequest), match=field):
        read(**written)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"units": {"cores": [1, 2, 4]}}, r"units.cores: a list is \[fewest, most\]; a set of amounts is {'any_of'"),
        ({"units": {"cores": [4, 1]}}, r"units.cores: \[fewest, most\]: 4 is more than 1"),
        ({"units": {"cores": [-1, 4]}}, "units.cores: -1 is not from 0 to 1024"),
        ({"units": {"cores": 5000}}, "units.cores: 5000 is not from 0 to 1024"),
        ({"units": {"cores": 1, "mb": {"any_of": [1]}}}, "units.mb: a set of amounts is for cores alone"),
        ({"units": {"cores": {"any_of": [0]}}}, "units.cores: any_of lists amounts from 1 to 1024"),
        ({"units": {"cores": [0, 4]}, "elasticity": {"1": 1}}, r"units.cores: what scales needs one .*write \[1, 4\]"),
        ({"elasticity": {"1": 5e-324}}, "elasticity: .*: must be at least 1e-06. Write units -> efficiency as"),
        ({"elasticity": {"model": "magic"}}, r"elasticity: .*'magic'.*\"model\": \"amdahl\""),
        ({"elasticity": {"2": 7}}, "elasticity: .*: must be at most 1. Write units -> efficiency as"),
    ],
)  # fmt: skip
def test_a_rejected_action_names_what_to_write(written: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadRequest, match=expected):
        of_action(**written)


def test_a_rejected_task_lists_the_models() -> None:
    with pytest.raises(ValidationError, match=r'must be a table like .*"amdahl", "serial": s.*"power", "exponent": e'):
        of_task(elasticity={"model": "magic"})


def test_the_planner_counts_the_fewest() -> None:
    stages = [{"name": "run", "kind": "code.run", "units": {"cores": {"any_of": [8, 2, 4]}}}]

    (stage,) = Workflow.of("ada", "t", Task.model_validate({"stages": stages})).stages

    assert stage.plan({}).units == 2


@given(st.sets(st.integers(1, MOST_UNITS), min_size=1))
def test_a_set_is_kept_in_order_between_its_bounds(amounts: set[int]) -> None:
    (work,) = [of_action(units={"cores": {"any_of": [*amounts]}})]

    assert work.cost["cores"] == (min(amounts), max(amounts))
    assert set(work.amounts or (work.cost["cores"][0],)) == amounts
    assert list(work.amounts) == sorted(work.amounts)


def test_every_duration_follows_from_the_formulation() -> None:
    wide = formulated({"cores": [1, 8]}, {"model": "amdahl", "serial": 0.1}, "cores@default")

    assert wide.elasticity is not None
    assert wide.elasticity.duration(80.0, 8) == pytest.approx(80 * (0.1 + 0.9 / 8))
