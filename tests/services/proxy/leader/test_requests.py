"""From journal entries to the dispatcher's values: amounts, environments, and unschedulable entries."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.proxy.leader.requests import Unschedulable, to_end, to_granted, to_need, to_request, to_work
from shared.messages.environments import EnvironmentSpec
from shared.messages.grants import Granted, grants_topic
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import EnvironmentNeed, FailedCalls, Grant
from tests.services.proxy.mesh import SPEC, acting, journalled, outcome, stage, submitted

AMDAHL = Elasticity("amdahl", serial=0.1)


def cored(fewest: int, most: int, **rest: Any) -> Any:
    return msgspec.structs.replace(stage(), cost={"cores": (fewest, most)}, **rest)


def test_every_amount_of_a_range_may_be_granted() -> None:
    work = to_work(cored(2, 5, elasticity=AMDAHL, duration_s=3.0))

    assert (dict(work.units), work.amounts, work.elasticity, work.duration_s) == (
        {"cores": 2},
        (2, 3, 4, 5),
        AMDAHL,
        3.0,
    )


def test_only_the_amounts_of_a_set_may_be_granted() -> None:
    assert to_work(cored(1, 8, amounts=(1, 2, 8))).amounts == (1, 2, 8)


def test_a_fixed_amount_leaves_no_choice() -> None:
    assert to_work(cored(3, 3)).amounts == ()


@pytest.mark.parametrize(
    "other",
    [
        {"name": "other"},
        {"kind": "other"},
        {"pool": "cores@other"},
        {"cost": {"cores": (1, 7)}},
        {"cost": {"cores": (2, 8)}},
        {"timeout_s": 7.5},
        {"repeatable": False},
        {"amounts": (1, 8)},
        {"elasticity": AMDAHL},
        {"duration_s": 2.0},
        {"quotas": {"search": 1.0}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_only_stages_that_differ_in_nothing_but_parameters_share_a_value(other: dict[str, Any]) -> None:
    first, params = cored(1, 8), msgspec.Raw(b'{"program": "pass"}')

    assert to_work(msgspec.structs.replace(first, params=params)) is to_work(first)
    assert to_work(msgspec.structs.replace(first, **other)) != to_work(first)


@pytest.mark.parametrize(
    ("image", "kind", "pulled"),
    [("local", "runtime.local", ""), ("docker.io/library/python", "runtime.docker", "python:latest")],
)
def test_an_action_of_a_trajectory_needs_a_node_with_the_runtime(image: str, kind: str, pulled: str) -> None:
    spec = EnvironmentSpec(image=image, memory_mb=300)

    request = to_request(journalled(acting("a", "t7", spec=spec)))

    assert request.need == EnvironmentNeed("t7", kind, {"memory_mb": 300, "starts": 1}, pulled)
    assert not request.stages[0].repeatable


def test_looking_may_be_repeated() -> None:
    assert to_request(journalled(acting("a", kind="env.read"))).stages[0].repeatable


def test_other_actions_need_no_environment() -> None:
    assert to_need(submitted("a")) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"cost": {"cores": (1, 5000)}},
        {"amounts": (2, 1)},
        {"amounts": (1, 1, 2)},
        {"amounts": (2, 4)},
        {"amounts": (1, 9)},
        {"duration_s": float("nan")},
        {"duration_s": 0.0},
        {"elasticity": Elasticity("amdahl", serial=float("nan"))},
        {"elasticity": Elasticity("power", exponent=2.0)},
        {"elasticity": Elasticity("table", ((4, 0.9), (2, 0.9)))},
        {"elasticity": Elasticity("table", ((0, 0.9),))},
        {"elasticity": Elasticity("table", ((2, 0.0),))},
        {"elasticity": Elasticity("table", ((1, 5e-324),))},
        {"cost": {"cores": (0, 4)}, "elasticity": AMDAHL},
    ],
)
def test_an_invalid_elasticity_is_unschedulable(wrong: dict[str, Any]) -> None:
    work = cored(1, 8, **wrong) if "cost" not in wrong else msgspec.structs.replace(stage(), **wrong)

    with pytest.raises(Unschedulable, match="run"):
        to_request(journalled(submitted("a", work)))


@pytest.mark.parametrize(
    "right",
    [
        {"amounts": (1, 2, 8)},
        {"elasticity": AMDAHL, "duration_s": 0.5},
        {"elasticity": Elasticity("table", ((1, 1.0), (8, 0.5)))},
        {},
    ],
)
def test_a_valid_elasticity_is_schedulable(right: dict[str, Any]) -> None:
    request = to_request(journalled(submitted("a", cored(1, 8, **right))))

    assert request.stages[0].elasticity == right.get("elasticity")


def test_the_grant_that_begins_an_environment_describes_it() -> None:
    request = acting("a")

    begun, later = (
        to_granted(7, Grant("a", "n", 1, 0, {"cores": 3}, 9.0, begins=begins), request) for begins in (True, False)
    )

    assert (begun.environment, later.environment) == (SPEC, None)
    assert begun.trajectory == later.trajectory == "t1"
    assert begun.units == {"cores": 3}


def test_a_grant_carries_failed_calls_and_an_older_one_has_none() -> None:
    failed = Grant("a", "n", 3, 0, {"cores": 1}, 9.0, failed_calls=FailedCalls(2, 1))
    message = grants_topic("n", "1").encode(to_granted(7, failed, acting("a")))
    granted = grants_topic("n", "1").decode(message)
    assert isinstance(granted, Granted)
    assert granted.failed_calls == (2, 1)
    fields = {name: value for name, value in msgspec.msgpack.decode(message).items() if name != "failed_calls"}
    older = grants_topic("n", "1").decode(msgspec.msgpack.encode(fields))
    assert isinstance(older, Granted)
    assert older.failed_calls is None


def test_an_end_reports_whether_the_environment_exists() -> None:
    assert to_end(outcome("a")).result.environment_exists
    assert not to_end(outcome("a", status="lost", environment_exists=False)).result.environment_exists
