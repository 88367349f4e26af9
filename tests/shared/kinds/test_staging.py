"""A stage from (kind, parameters, units), for a kind of another executor than the CPU manager."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from shared.kinds.spec import KindSpec, Params, Requirement
from shared.kinds.staging import StageForm, single_stage
from shared.messages.actions import StageWork
from shared.policy.model.elasticity import Elasticity
from shared.runtime.errors import BadRequest


class Judge(Params, frozen=True, kw_only=True):
    """Asks a model."""

    prompt: str
    image: str | None = None
    context: Any = None


JUDGE = KindSpec(
    "model.judge",
    Judge,
    "gpu_manager",
    {"gpus": 2, "calls": 1},
    ("gpus", "calls"),
    repeatable=False,
    requirement=Requirement("gpus", "sees images and needs a GPU", "image"),
    free_form=("context",),
)


@dataclass
class Asked:
    params: msgspec.Raw
    units: dict[str, Any] | None = None
    elasticity: dict[str, float | str] = field(default_factory=dict)
    duration_s: float | None = None
    quotas: dict[str, float] = field(default_factory=dict)
    timeout_s: float = 9.0


def asked(**params: Any) -> Asked:
    return Asked(msgspec.Raw(msgspec.json.encode(params)))


def test_defaults_come_from_the_declaration() -> None:
    request = asked(prompt="p", image="i")

    assert single_stage(JUDGE, request, "big") == StageWork(
        name="run",
        kind="model.judge",
        pool="gpus@big",
        cost={"gpus": (2, 2), "calls": (1, 1)},
        timeout_s=9.0,
        params=b'{"prompt":"p","image":"i"}',
        repeatable=False,
    )


def test_a_callers_units_and_elasticity_are_formulated() -> None:
    request = asked(prompt="p")
    request.units, request.elasticity, request.duration_s = {"gpus": [1, 4]}, {"model": "amdahl", "serial": 0.5}, 3.0
    request.quotas = {"judge": 1, "judge-tokens": 800}

    stage = single_stage(JUDGE, request, "any")

    assert stage.quotas == {"judge": 1, "judge-tokens": 800}
    assert (stage.cost, stage.elasticity, stage.duration_s) == ({"gpus": (1, 4)}, Elasticity("amdahl", serial=0.5), 3.0)


@pytest.mark.parametrize(
    ("units", "pool"),
    [
        ({"calls": 1, "gpus": 1}, "gpus@big"),
        ({"calls": 1}, "calls@big"),
        ({"disks": 1, "tapes": 2}, "disks@big"),
        ({}, "calls@big"),
        (None, "gpus@big"),
    ],
)
def test_the_pool_is_of_the_first_declared_resource_that_it_takes(units: dict[str, int] | None, pool: str) -> None:
    assert StageForm.of(JUDGE, units, {}, "big").pool == pool


def test_what_the_kind_requires_is_checked_with_its_parameters() -> None:
    only_calls = StageForm.of(JUDGE, {"calls": 1})

    only_calls.check_units({"prompt": "p", "image": None})
    for what, shown in (("", "model.judge"), ("stage 'a'", "stage 'a'")):
        with pytest.raises(ValueError, match=f"^{shown} sees images and needs a GPU; its `units` are {{'calls': 1}}$"):
            only_calls.check_units({"prompt": "p", "image": "i"}, what)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (asked(image="i"), "params of model.judge: .*prompt"),
        (asked(prompt="p", prompd="p"), "params of model.judge: .*prompd"),
        (replace(asked(prompt="p"), units={"gpus": [4, 1]}), "4 is more than 1"),
        (replace(asked(prompt="p", image="i"), units={"gpus": 0}), "needs a GPU; its `units` are {'gpus': 0}"),
    ],
)
def test_errors_are_of_the_caller(request_: Asked, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        single_stage(JUDGE, request_, "any")


def test_parameters_of_free_form_are_checked() -> None:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(BadRequest, match=r"params of model.judge: context: more than 64 lists"):
        single_stage(JUDGE, asked(prompt="p", context=deep), "any")
