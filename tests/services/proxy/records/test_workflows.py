"""Work from a task's stages and a request's parameters, or the error in them."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cpu_manager.kinds import PLAIN
from services.proxy.records.workflows import Workflow, plain_stages
from shared.api.requests import ActionRequest
from shared.api.tasks import StageTemplate, Task
from shared.runtime.errors import BadRequest


def workflow(*stages: dict[str, Any]) -> Workflow:
    templates = [StageTemplate.model_validate({"name": f"s{place}", **stage}) for place, stage in enumerate(stages)]
    return Workflow.of("ada", "t", Task(stages=templates))


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def params_of(flow: Workflow, params: Any, **own: Any) -> list[Any]:
    stages = flow.resolve(raw(params), {name: raw(value) for name, value in own.items()})
    return [msgspec.json.decode(stage.params) for stage in stages]


TWO = workflow({"kind": "code.run"}, {"kind": "code.asserts", "params": {"tests": "assert True", "timeout_s": 3}})


def test_a_parameter_goes_to_every_stage_whose_kind_has_it() -> None:
    assert params_of(TWO, {"code": "x", "stdin": "only the first reads it", "entry_point": "only the second"}) == [
        {"code": "x", "stdin": "only the first reads it"},
        {"code": "x", "tests": "assert True", "timeout_s": 3, "entry_point": "only the second"},
    ]


def test_a_request_lies_over_its_template_and_a_stages_own_over_both() -> None:
    first, second = params_of(TWO, {"code": "x", "timeout_s": 4}, s1={"timeout_s": 5})
    assert ("timeout_s" in first, second["timeout_s"]) == (False, 5)

    assert params_of(TWO, {"code": "x", "timeout_s": 4})[1]["timeout_s"] == 4
    assert params_of(TWO, {"code": "x"}, s0={"code": "y"})[0]["code"] == "y"


def test_one_request_leaves_no_trace_in_the_next() -> None:
    params_of(TWO, {"code": "x", "timeout_s": 4}, s1={"tests": "assert False"})

    assert params_of(TWO, {"code": "x"})[1] == {"code": "x", "tests": "assert True", "timeout_s": 3}


@pytest.mark.parametrize(
    ("params", "own", "message"),
    [
        ({"code": "x", "kode": "y"}, {}, "task 't' has no parameter `kode`; the parameters are `code`, "),
        ({"code": "x"}, {"s9": {}}, "task 't' has no stage `s9`; the stages are `s0`, `s1`"),
        ({"code": "x"}, {"s0": {"tests": ""}}, r"params of stage 's0' \(code.run\): .*tests"),
        ({}, {}, r"params of stage 's0' \(code.run\): .*code"),
        ({"code": 1}, {}, r"params of stage 's0' .*: code: must be text"),
        ({"code": "x", "timeout_s": -1}, {}, r"params of stage 's1' \(code.asserts\): .*timeout_s"),
        ([], {}, "params: "),
        ({"code": "x"}, {"s1": []}, "stage_params.s1: "),
    ],
)
def test_what_does_not_fit_is_named(params: Any, own: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        params_of(TWO, params, **own)


JUDGE = {"url": "http://x.example/", "query": {"q": "{words}"}, "json": [{"content": "Mark {response}"}, 1]}


@pytest.mark.parametrize(
    ("params", "missing"),
    [
        ({"values": {"response": "{other}", "words": ""}}, None),
        ({"values": {"response": "x"}}, "`query` has the place {words}"),
        ({"values": {"words": "x", "respons": "x"}}, "`json` has the place {response}"),
        ({}, "`query` has the place {words}"),
        ({"values": {"words": "x"}, "json": "{as} it is"}, None),
    ],
)
def test_every_place_of_a_template_is_filled(params: Any, missing: str | None) -> None:
    """Otherwise a judge would score the place."""
    flow = workflow({"kind": "http", "params": JUDGE})
    if missing is None:
        params_of(flow, params)
    else:
        with pytest.raises(BadRequest, match=re.escape(missing)):
            params_of(flow, params)


@pytest.mark.parametrize(
    ("url", "values", "wrong"),
    [
        ("/{a}", {"a": "1"}, None),
        ("/{a}", {"b": "1"}, "`values` has 'b' without a place; there is {a}"),
        ("/{", {}, None),
    ],
)
def test_a_plain_call_has_a_place_for_each_value(url: str, values: dict[str, str], wrong: str | None) -> None:
    request = ActionRequest(kind="http", params=raw({"url": f"http://x.example{url}", "values": values}))
    if wrong is None:
        plain_stages(request)
    else:
        with pytest.raises(BadRequest, match=re.escape(wrong)):
            plain_stages(request)


def test_parameters_that_are_no_json_are_named() -> None:
    with pytest.raises(BadRequest, match="params is not JSON: "):
        TWO.resolve(msgspec.Raw(b"{nonsense"), {})


@given(st.lists(st.sampled_from(sorted(PLAIN)), min_size=1, max_size=4), st.text(max_size=5))
def test_every_stage_gets_the_parameters_of_its_kind_and_no_other(kinds: list[str], code: str) -> None:
    flow = workflow(*({"kind": kind} for kind in kinds))
    known = {name for kind in kinds for name in PLAIN[kind].fields}
    given_params = {
        name: value
        for name, value in {
            "code": code, "tests": [] if "code.stdio" in kinds else "", "module": "", "solution_str": "",
            "response": "", "gold": "", "seconds": 0.0,
        }.items()
        if name in known
    }  # fmt: skip
    if {"code.asserts", "code.stdio"} <= set(kinds):
        return  # one name, two types: such a task must use stage_params

    resolved = flow.resolve(raw(given_params), {})

    for stage, kind in zip(resolved, kinds, strict=True):
        params = msgspec.json.decode(stage.params, type=PLAIN[kind].params)
        assert msgspec.to_builtins(params).items() <= {**given_params, **msgspec.to_builtins(params)}.items()
        assert msgspec.json.decode(stage.params).keys() == given_params.keys() & set(PLAIN[kind].fields)


@pytest.mark.parametrize("kind", sorted(PLAIN))
def test_work_takes_a_core_unless_its_kind_only_waits(kind: str) -> None:
    (stage,) = workflow({"kind": kind}).stages

    resource = "slots" if kind in ("noop", "sleep") else "cores"
    assert (stage.form.formulation.cost, stage.form.pool) == ({resource: (1, 1)}, f"{resource}@default")


@pytest.mark.parametrize(
    ("units", "cost", "pool", "counted"),
    [
        ({"cores": 2}, {"cores": (2, 2)}, "cores@big", 2),
        ({"memory": 4, "cores": [1, 8]}, {"memory": (4, 4), "cores": (1, 8)}, "cores@big", 1),
        ({"chunks": 2, "memory": 4}, {"chunks": (2, 2), "memory": (4, 4)}, "chunks@big", 2),
        ({}, {}, "slots@big", 0),
    ],
)
def test_a_stage_queues_in_the_pool_of_its_units(units: Any, cost: Any, pool: str, counted: int) -> None:
    (stage,) = workflow({"kind": "code.run", "units": units, "node_class": "big", "timeout_s": 7}).stages

    assert (stage.form.formulation.cost, stage.form.pool, stage.plan({}).units) == (cost, pool, counted)
    assert stage.plan({}).timeout_s == 7


def test_the_planner_learns_what_a_stage_takes_from_quotas() -> None:
    flow = workflow({"kind": "noop", "quotas": {"search": 1, "judge-tokens": 800}}, {"kind": "noop"})

    assert [stage.plan({}).quotas for stage in flow.stages] == [{"search": 1.0, "judge-tokens": 800.0}, {}]


def test_the_planner_gets_the_present_amount_of_one_that_is_learned() -> None:
    (stage,) = workflow({"kind": "noop", "quotas": {"search": 1, "judge-tokens": "learned"}}).stages

    assert stage.learned == {"judge-tokens"}
    assert stage.plan({"judge-tokens": 700.0}).quotas == {"search": 1.0, "judge-tokens": 700.0}


def test_a_stage_carries_the_score_it_names_for_its_time_limit_and_only_that() -> None:
    flow = workflow({"kind": "noop", "timeout_score": -2.5}, {"kind": "noop"})

    assert [stage.timeout_score for stage in flow.resolve(raw({}), {})] == [-2.5, None]


@pytest.mark.parametrize("units", [{"cores": 0}, {"cores": [0, 4]}, {"slots": 1}, {}])
@pytest.mark.parametrize("kind", sorted(PLAIN))
def test_kinds_that_use_a_sandbox_need_a_core(kind: str, units: dict[str, Any]) -> None:
    flow = workflow({"kind": kind, "units": units})

    if kind in ("noop", "sleep") or kind == "answer.match":
        flow.check()
    else:
        with pytest.raises(BadRequest, match="needs a core"):
            flow.check()


def test_matching_needs_a_core_where_it_searches() -> None:
    given = {"response": "a", "gold": "a"}
    flow = workflow({"kind": "answer.match", "units": {"slots": 1}})
    flow.resolve(raw(given), {})

    with pytest.raises(BadRequest, match=r"'s0' \(answer.match\) runs in a sandbox and needs a core"):
        flow.resolve(raw({**given, "extract": "a"}), {})
    with pytest.raises(BadRequest, match="needs a core"):
        workflow({"kind": "answer.match", "units": {"slots": 1}, "params": {"extract": "a"}}).check()


KERNEL: dict[str, Any] = {
    "kernel": "add",
    "arguments": [{"name": "out", "role": "output", "dtype": "float32", "shape": ["n"]}],
    "launch": {"grid": [1], "block": [1]},
    "cases": [{"sizes": {"n": 1000}}],
    "reference": "def reference():\n    return np.ones(1000, np.float32)\n",
}


def test_a_kernel_is_compiled_on_a_core_and_runs_on_a_gpu() -> None:
    request = ActionRequest(
        kind="cuda.kernel", params=raw({"code": "c", "arch": "sm_90", **KERNEL}), timeout_s=9, units={"gpus": 1},
        duration_s=3.0, quotas={"kernels": 1},
    )  # fmt: skip
    first, second = plain_stages(request)
    assert (first.name, first.kind, first.pool, first.cost) == (
        "compile",
        "cuda.compile",
        "cores@default",
        {"cores": (1, 1)},
    )
    assert (second.name, second.kind, second.pool, second.cost) == (
        "run",
        "cuda.kernel",
        "gpus@default",
        {"gpus": (1, 1)},
    )
    assert msgspec.json.decode(first.params) == {"code": "c", "arch": "sm_90"}
    assert msgspec.json.decode(second.params) == KERNEL
    assert (first.duration_s, first.quotas, second.duration_s, second.quotas) == (None, {}, 3.0, {"kernels": 1.0})
    assert second.service


@pytest.mark.parametrize(
    ("params", "units", "message"),
    [
        (KERNEL, None, "params of cuda.kernel: missing field `code`"),
        ({"code": "c", **KERNEL, "launch": {"grid": [0], "block": [1]}}, None, "launch.grid"),
        ({"code": "c", **KERNEL, "kind": "x"}, None, "unknown field `kind`"),
        ({"code": "c", **KERNEL}, {"gpus": 2}, "units.gpus: 2 is none of 1"),
    ],
)
def test_a_kernel_that_cannot_run_is_rejected(
    params: dict[str, Any], units: dict[str, int] | None, message: str
) -> None:
    with pytest.raises(BadRequest, match=re.escape(message)):
        plain_stages(ActionRequest(kind="cuda.kernel", params=raw(params), units=units))


def test_a_stage_that_takes_an_artifact_needs_one_that_makes_it() -> None:
    flow = workflow({"kind": "cuda.compile"}, {"kind": "cuda.kernel", "params": KERNEL})
    flow.check()
    compiling, running = params_of(flow, {"code": "c"})
    assert (compiling, running) == ({"code": "c"}, KERNEL)
    with pytest.raises(BadRequest, match=re.escape("put a stage of the kind cuda.compile before it")):
        workflow({"kind": "cuda.kernel", "params": KERNEL}, {"kind": "cuda.compile"}).check()
    two = workflow({"kind": "code.run"}, {"kind": "code.run", "params": {"artifact_as": "in"}})
    two.check()
    assert params_of(two, {"code": "x"}, s0={"artifact": "out"})[0] == {"code": "x", "artifact": "out"}
    with pytest.raises(BadRequest, match="no earlier stage makes one"):
        params_of(two, {"code": "x"})
    with pytest.raises(BadRequest, match="takes an artifact, and no stage is before it"):
        plain_stages(ActionRequest(kind="code.run", params=raw({"code": "x", "artifact_as": "in"})))


@pytest.mark.parametrize("units", [{"cores": 0}, {"gpus": 1}])
def test_a_plain_action_needs_a_core_as_well(units: dict[str, int]) -> None:
    body = msgspec.Raw(b'{"code": ""}')

    with pytest.raises(BadRequest, match=r"code\.run runs in a sandbox and needs a core"):
        plain_stages(ActionRequest(kind="code.run", params=body, units=units))
    plain_stages(ActionRequest(kind="noop", units=units))


def test_a_plain_action_is_one_stage_with_its_parameters_as_they_came() -> None:
    body = msgspec.Raw(b'{ "seconds" : 1.0 }')

    (stage,) = plain_stages(ActionRequest(kind="sleep", params=body, timeout_s=9, units={"cores": 2}, node_class="big"))

    assert (stage.kind, stage.params, stage.timeout_s) == ("sleep", bytes(body), 9)
    assert (stage.cost, stage.pool) == ({"cores": (2, 2)}, "cores@big")


def test_the_planner_gets_the_model_service_of_a_template() -> None:
    flow = workflow(
        {"kind": "model.score", "params": {"service": "reward-b"}, "units": {"gpus": 2}},
        {"kind": "model.score"},
        {"kind": "code.run"},
    )
    assert [(one.service, one.units) for one in (stage.plan({}) for stage in flow.stages)] == [
        ("reward-b", 2), ("", 1), ("", 1),
    ]  # fmt: skip
