"""Parameters of actions of model services: what is accepted, and what a caller is told to write instead."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.gpu_manager.kinds import (
    EMBED,
    JUDGE,
    KINDS,
    LOGPROB,
    MOST_TEXT,
    SCORE,
    ModelJudge,
    ModelScore,
    ScoredPair,
    check_template,
)
from shared.api.requests import ActionRequest
from shared.kinds.registry import Kinds
from shared.kinds.staging import StageForm, single_stage
from shared.runtime.errors import BadRequest
from shared.runtime.validation import decoded

BY_NAME = {spec.name: spec for spec in KINDS}
ASK = [{"role": "user", "content": "Grade {a}."}]
RULE = {"regex": "([0-9]+)"}


def read(kind: str, **params: Any) -> Any:
    return decoded(BY_NAME[kind].decoder, msgspec.json.encode({"service": "s", **params}))


def test_the_kinds_take_one_gpu_and_name_their_service() -> None:
    assert [spec.name for spec in KINDS] == [
        "model.judge",
        "model.score",
        "model.logprob",
        "model.embed",
        "cuda.kernel",
    ]
    for spec in KINDS[:-1]:
        assert (spec.service, dict(spec.units), spec.resources) == ("gpu_manager", {"gpus": 1}, ("gpus",))
        assert spec.repeats(read(spec.name, **SMALLEST[spec.name]))
        assert spec.service_by == "service"
    assert Kinds.of(KINDS).kind(JUDGE).fields[0] == "service"


SMALLEST: dict[str, dict[str, Any]] = {
    JUDGE: {"messages": ASK, "score": RULE},
    SCORE: {"inputs": ["a"]},
    LOGPROB: {"tokens": [1, 2]},
    EMBED: {"texts": ["a"]},
}
"""Kind -> its required parameters."""


def test_an_action_without_a_gpu_is_rejected_at_submission() -> None:
    with pytest.raises(ValueError, match=r"model\.score runs on a model service and needs a GPU; its `units` are"):
        StageForm.of(BY_NAME[SCORE], {"gpus": 0}).check_units({})


def test_a_stage_names_its_service() -> None:
    raw = msgspec.json.encode({"kind": SCORE, "params": {"service": "rm-a", "inputs": ["x"]}})
    stage = single_stage(BY_NAME[SCORE], msgspec.json.decode(raw, type=ActionRequest), "default")
    assert (stage.service, stage.pool, stage.cost) == ("rm-a", "gpus@default", {"gpus": (1, 1)})


@pytest.mark.parametrize(
    ("inputs", "found"),
    [
        ([{"prompt": "p", "answer": "a"}], [ScoredPair(prompt="p", answer="a")]),
        (["a", {"prompt": "p", "answer": "a"}], ["a", ScoredPair(prompt="p", answer="a")]),
        (["p", "a"], ["p", "a"]),
    ],
)
def test_inputs_of_a_reward_model(inputs: object, found: object) -> None:
    params = read(SCORE, inputs=inputs)
    assert isinstance(params, ModelScore)
    assert params.inputs == found


def test_defaults_of_a_judgement() -> None:
    params = read(JUDGE, messages=ASK, score=RULE)
    assert isinstance(params, ModelJudge)
    assert (params.temperature, params.seed, params.attempts, params.max_tokens, params.scale, params.pass_at) == (
        0.0, None, 3, 1024, 1.0, None,
    )  # fmt: skip


def test_a_field_may_be_unused_and_a_text_may_have_braces() -> None:
    """A field that a task's other stage uses is in every stage's parameters."""
    content = 'Write {"score": 1} for {a}, {} or {1}.'
    params = read(JUDGE, template=[{"role": "user", "content": content}], fields={"a": "x", "b": "y"}, score=RULE)
    assert params.fields == {"a": "x", "b": "y"}


LONG = "x" * MOST_TEXT
ERRORS: list[tuple[str, dict[str, Any], str]] = [
    (JUDGE, {"score": RULE}, "write one of `messages`, and `template` with `fields`"),
    (JUDGE, {"messages": ASK, "template": ASK, "score": RULE}, "write one of `messages`, and `template` with `fields`"),
    (JUDGE, {"messages": ASK, "fields": {"a": ""}, "score": RULE},
     "`fields` fill places of `template`, and `messages` has none; write `template`"),
    (JUDGE, {"messages": ASK}, "missing field `score`"),
    (JUDGE, {"messages": [], "score": RULE}, "messages: must have at least 1 item"),
    (JUDGE, {"messages": [{"role": "tool", "content": ""}], "score": RULE},
     "messages[0].role: must be one of assistant, developer, system, user, not 'tool'"),
    (JUDGE, {"messages": [{"role": "user", "content": "", "name": "x"}], "score": RULE},
     "messages[0]: unknown field `name`; the fields are `role`, `content`"),
    (JUDGE, {"template": ASK, "score": RULE},
     'template: the place {a} has no text; add it to `fields`, or keep the braces by "a": "{a}"'),
    (JUDGE, {"template": ASK, "fields": {"a b": ""}, "score": RULE},
     "fields: a key must be letters, digits and '_', beginning with a letter or '_'"),
    (JUDGE, {"template": [{"role": "user", "content": "{a}" * 9}], "fields": {"a": LONG}, "score": RULE},
     "template: it has 9437211 characters with its fields, and may have 8388608"),
    (JUDGE, {"messages": ASK, "score": {}},
     'score: write one of `regex` and `schema`: {"regex": "score: ([0-9.]+)"}, or {"schema": {"type": "object", '),
    (JUDGE, {"messages": ASK, "score": {"regex": "(a)", "schema": {}}}, "score: write one of `regex` and `schema`"),
    (JUDGE, {"messages": ASK, "score": {"regex": "a"}}, "score: regex: it has 0 groups; write one group"),
    (JUDGE, {"messages": ASK, "score": {"regex": "(a)(b)"}}, "score: regex: it has 2 groups; write one group"),
    (JUDGE, {"messages": ASK, "score": {"regex": "(?=a)(b)"}}, "RE2 has no look-around and no back-references"),
    (JUDGE, {"messages": ASK, "score": {"regex": "(a)", "pointer": "/a"}}, "score: `pointer` belongs to `schema`"),
    (JUDGE, {"messages": ASK, "score": {"schema": {}, "pointer": "a"}}, "score.pointer: must be a JSON pointer"),
    (JUDGE, {"messages": ASK, "score": {"schema": {"a": "x" * 70_000}}}, "score: schema: it has 70008 bytes, and may"),
    (JUDGE, {"messages": ASK, "score": RULE, "attempts": 0}, "attempts: must be at least 1"),
    (JUDGE, {"messages": ASK, "score": RULE, "max_tokens": 0}, "max_tokens: must be at least 1"),
    (JUDGE, {"messages": ASK, "score": RULE, "temperature": -1}, "temperature: must be at least 0"),
    (JUDGE, {"messages": ASK, "score": RULE, "seed": 2**31}, "seed: must be at most 2147483647"),
    (SCORE, {"inputs": []}, "inputs: must have at least 1 item"),
    (SCORE, {"inputs": ["a"] * 257}, "inputs: must have at most 256 items"),
    (SCORE, {"inputs": [["p", "a"]]}, "inputs[0]: must be text or an object, not a list"),
    (SCORE, {"inputs": [{"prompt": "p"}]}, "inputs[0]: missing field `answer`"),
    (SCORE, {"inputs": 3}, "inputs: must be "),
    (EMBED, {}, 'write one of `texts` and `pairs`: {"texts": ["..."]} or {"pairs": [["...", "..."]]}'),
    (EMBED, {"texts": ["a"], "pairs": [["a", "b"]]}, "write one of `texts` and `pairs`"),
    (EMBED, {"pairs": []}, "pairs: must have at least 1 item"),
    (LOGPROB, {}, 'write one of `tokens` and `text`: {"tokens": [1, 2, 3]} or {"text": "..."}'),
    (LOGPROB, {"tokens": [1, 2], "text": "a"}, "write one of `tokens` and `text`"),
    (LOGPROB, {"tokens": [1]}, "tokens: must have at least 2 items"),
    (LOGPROB, {"tokens": [1, -1]}, "tokens[1]: must be at least 0"),
    (LOGPROB, {"tokens": [1, 2], "start": 2}, "start: 2 is behind the last of 2 tokens; count from 0"),
    (LOGPROB, {"tokens": [1, 2], "start": 0}, "start: must be at least 1"),
    (LOGPROB, {"text": ""}, "text: must have at least 1 character"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "params", "message"), ERRORS, ids=range(len(ERRORS)))
def test_a_wrong_parameter_says_what_to_write(kind: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest) as error:
        read(kind, **params)
    assert message in str(error.value)


@pytest.mark.parametrize("params", [{"service": "a/b"}, {"service": ""}, {}])
def test_each_action_names_a_service(params: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="service"):
        decoded(BY_NAME[SCORE].decoder, msgspec.json.encode({"inputs": ["a"], **params}))


@pytest.mark.parametrize(
    "params",
    [
        {"messages": ASK, "template": ASK},
        {"messages": ASK, "fields": {"a": "b"}},
        {"texts": ["a"], "pairs": [["a", "b"]]},
        {"tokens": [1, 2], "text": "a"},
    ],
)
def test_parameters_of_a_task_that_no_request_makes_valid(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exclude each other: remove one of them"):
        check_template(params)


def test_a_task_may_leave_the_texts_to_its_requests() -> None:
    check_template({"template": ASK, "score": RULE})
    check_template({"service": "a"})


@pytest.mark.parametrize("units", [{"gpus": 3}, {"gpus": {"any_of": [1, 3]}}, {"gpus": [3, 8]}])
def test_a_chunk_of_three_gpus_is_rejected(units: object) -> None:
    raw = msgspec.json.encode({"kind": SCORE, "params": {"service": "rm-a", "inputs": ["x"]}, "units": units})
    with pytest.raises(BadRequest, match=r"model.score: units.gpus: 3 is none of 1, 2, 4, 8"):
        single_stage(BY_NAME[SCORE], msgspec.json.decode(raw, type=ActionRequest), "default")
    fine = msgspec.json.decode(raw.replace(b"3", b"2"), type=ActionRequest)
    assert single_stage(BY_NAME[SCORE], fine, "default").service == "rm-a"
