"""The generated types of the client have the names, fields and defaults of the mesh's interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from pydantic import BaseModel

from shared.api import batches, mesh, requests, tasks, trajectories
from shared.messages.environments import EnvironmentSpec
from shared.policy.model.formulation import EndedAs
from shared.runtime.errors import PROBLEMS
from treadle.client import answers
from treadle.client import requests as bodies
from treadle.client.errors import BY_SLUG

PAIRS: list[tuple[type[msgspec.Struct], type[Any]]] = [
    (bodies.StageTemplate, tasks.StageTemplate),
    (bodies.Task, tasks.Task),
    (bodies.BatchOpening, batches.BatchOpening),
    (bodies.ProgressReport, batches.ProgressReport),
    (bodies.RewardRequest, requests.RewardRequest),
    (bodies.ActionRequest, requests.ActionRequest),
    (bodies.EnvironmentSpec, EnvironmentSpec),
    (bodies.TrajectoryRequest, trajectories.TrajectoryRequest),
    (bodies.TrajectoryAction, trajectories.TrajectoryAction),
    (answers.TaskView, tasks.TaskView),
    (answers.Spread, batches.Spread),
    (answers.StageProgress, batches.StageProgress),
    (answers.FailureKind, batches.FailureKind),
    (answers.EnvironmentProgress, batches.EnvironmentProgress),
    (answers.BatchView, batches.BatchView),
    (answers.ProgressReceipt, batches.ProgressReceipt),
    (answers.NodeView, mesh.NodeView),
    (answers.NodeList, mesh.NodeList),
    (answers.Act, requests.Act),
    (answers.StageReport, requests.StageReport),
    (answers.Answer, requests.Answer),
    (answers.Rejection, requests.Rejection),
    (answers.BulkReceipt, requests.BulkReceipt),
    (answers.TrajectoryView, trajectories.TrajectoryView),
]


def fields(kind: type[Any]) -> set[str]:
    return set(kind.model_fields) if issubclass(kind, BaseModel) else set(kind.__struct_fields__)


def defaults(kind: type[Any]) -> dict[str, Any]:
    """Defaults as JSON has them, without fields that have none."""
    if issubclass(kind, BaseModel):
        found = {name: field.default for name, field in kind.model_fields.items() if not field.is_required()}
        return {name: _plain(value) for name, value in found.items()}
    described = msgspec.inspect.type_info(kind)
    assert isinstance(described, msgspec.inspect.StructType)
    return {field.name: _default(field) for field in described.fields if not field.required}


def _default(field: msgspec.inspect.Field) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return _plain(field.default)
    if field.default_factory is not msgspec.NODEFAULT:
        return _plain(field.default_factory())
    kinds = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
    return {} if any(isinstance(kind, msgspec.inspect.DictType) for kind in kinds) else None  # UNSET: it is not sent


def _plain(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda kind: kind.__name__)
def test_a_type_has_the_fields_and_defaults_of_the_interface(ours: type[msgspec.Struct], theirs: type[Any]) -> None:
    assert ours.__name__ == theirs.__name__
    assert fields(ours) == fields(theirs)
    assert defaults(ours) == defaults(theirs)


def test_endings_and_errors_are_those_of_the_mesh() -> None:
    assert set(get_args(answers.Ending)) == set(get_args(EndedAs))
    assert set(BY_SLUG) == set(PROBLEMS)


ROOTS = [
    *(answers.TaskView, answers.BatchView, answers.ProgressReceipt, answers.NodeList, answers.Answer, answers.Result),
    *(answers.BulkReceipt, answers.TrajectoryView),
]


@pytest.mark.parametrize("answer", ROOTS, ids=lambda kind: kind.__name__)
def test_an_answer_may_have_values_that_this_release_does_not_know(answer: type[msgspec.Struct]) -> None:
    """A newer mesh adds a state, an end or a kind. Its answers stay readable."""
    document = msgspec.json.schema(answer)
    assert document
    assert [found for found in closed_enums(document) if found] == []


def closed_enums(node: Any) -> Iterator[Any]:
    """Yield the enums beside which a schema does not allow any text."""
    if isinstance(node, list):
        for each in node:
            yield from closed_enums(each)
    if isinstance(node, dict):
        variants = node.get("anyOf", [])
        allows_text = any(each.get("type") == "string" and "enum" not in each for each in variants)
        if "enum" in node:
            yield node["enum"]
        for name, each in node.items():
            rest = [one for one in each if "enum" not in one] if name == "anyOf" and allows_text else each
            yield from closed_enums(rest)


def test_a_task_with_an_unknown_kind_is_read_back() -> None:
    view = {"name": "t", "tenant": "default", "version": 1, "stages": [{"name": "s", "kind": "code.formal"}]}
    read = msgspec.json.decode(json.dumps(view), type=answers.TaskView)
    assert [stage.kind for stage in read.stages] == ["code.formal"]


def test_the_mesh_reads_what_the_client_writes() -> None:
    stage = bodies.StageTemplate(
        name="s", kind="noop", units={"slots": [1, 4]}, elasticity={"model": "amdahl", "serial": 0.1}, timeout_s=5.0
    )
    task = tasks.Task.model_validate_json(msgspec.json.encode(bodies.Task(stages=[stage], batch_size=2)))
    assert (task.stages[0].name, task.batch_size) == ("s", 2)
    view = tasks.TaskView(**task.model_dump(), name="t", tenant="default", version=1).model_dump_json()
    assert msgspec.json.decode(view, type=answers.TaskView).stages[0].timeout_s == 5.0
    request = bodies.TrajectoryRequest(environment=bodies.EnvironmentSpec(setup=["true"]))
    read = msgspec.json.decode(msgspec.json.encode(request), type=trajectories.TrajectoryRequest)
    assert read.environment == EnvironmentSpec(setup=["true"])
