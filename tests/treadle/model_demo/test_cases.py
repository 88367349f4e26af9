"""Requests of the demo, and the comparison of their answers: what is wrong is counted as wrong."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.gpu_manager.judging import chat_request
from services.gpu_manager.kinds import ModelEmbed, ModelJudge, ModelScore
from treadle.client.answers import Answer
from treadle.model_demo.cases import (
    APART,
    MODEL,
    SERVICES,
    TOLERANCE,
    Service,
    Value,
    agree,
    answered_value,
    case_of,
    is_new,
    plain_value,
)
from treadle.model_demo.samples import built_in, read_solutions

SOLUTION = built_in()[0]
TEXT = '{"result": "268", "score": 7}'


def answer(service: Service, value: Any, **fields: Any) -> Answer:
    name = {"judge": "text", "similarity": "similarities", "reward": "scores"}[service]
    return Answer(id="a", state="finished", ended="ok", output={name: value}, **fields)


@pytest.mark.parametrize("service", SERVICES)
def test_an_action_has_parameters_that_its_kind_accepts(service: Service) -> None:
    kinds = {"judge": ModelJudge, "similarity": ModelEmbed, "reward": ModelScore}
    msgspec.convert(case_of(service, SOLUTION).params, kinds[service])


def test_the_mesh_sends_the_same_judgement_as_the_plain_call() -> None:
    case = case_of("judge", SOLUTION)
    sent = msgspec.to_builtins(chat_request(msgspec.convert(case.params, ModelJudge), MODEL, 0))
    ours = {**case.body, "response_format": sent["response_format"]}
    assert sent == ours
    assert sent["response_format"]["json_schema"]["schema"] == case.params["score"]["schema"]


def test_a_judgement_is_compared_by_its_text_and_its_score_is_read_anew() -> None:
    case = case_of("judge", SOLUTION)
    assert answered_value(case, answer("judge", TEXT, score=0.7000000000000001)) == TEXT
    assert answered_value(case, answer("judge", TEXT, score=0.8)) is None, "another score than its text means"
    assert answered_value(case, answer("judge", "seven", score=0.7)) is None
    assert not agree(TEXT, TEXT.replace("7", "8"))
    assert not agree(TEXT, [0.7])


@pytest.mark.parametrize("service", ["similarity", "reward"])
def test_numbers_are_compared_within_a_tolerance(service: Service) -> None:
    case = case_of(service, SOLUTION)
    reference = [0.5, -0.25]
    for found, right in (
        ([0.5, -0.25 + TOLERANCE / 2], True),
        ([0.5, -0.25 + 2 * TOLERANCE], False),
        ([-0.25, 0.5], False),
        ([0.5], False),
    ):
        value = answered_value(case, answer(service, found))
        assert value is not None
        assert agree(value, reference) is right


@pytest.mark.parametrize(
    "output", [None, {}, {"scores": None}, {"scores": []}, {"scores": ["1"]}, {"similarities": [1]}]
)
def test_an_output_of_another_form_has_no_value(output: Any) -> None:
    found = Answer(id="a", state="finished", ended="ok", output=output)
    assert answered_value(case_of("reward", SOLUTION), found) is None


def test_references_differ_so_that_no_answer_passes_for_another() -> None:
    others: list[Value] = [[0.5], TEXT]
    assert is_new([0.5 + 2 * APART], others)
    assert not is_new([0.5 + APART / 2], others)
    assert not is_new(TEXT, others)


def test_a_plain_judgement_that_was_cut_is_no_reference() -> None:
    choice = {"message": {"content": TEXT}, "finish_reason": "length"}
    case = case_of("judge", SOLUTION)
    assert plain_value(case, {"choices": [choice]}) is None
    assert plain_value(case, {"choices": [choice | {"finish_reason": "stop"}]}) == TEXT


def test_without_a_data_folder_a_set_of_our_own_is_judged(tmp_path: Path) -> None:
    found, source = read_solutions(tmp_path, seed=1)
    assert "built-in" in source
    assert "TREADLE_DATA" in source
    assert len({one.id for one in found}) == len(found) == 48
    assert sum(one.is_correct for one in found) == 24
    assert read_solutions(tmp_path, seed=1)[0] == found
    assert read_solutions(tmp_path, seed=2)[0] != found


def test_solutions_are_read_from_the_data_folder(tmp_path: Path) -> None:
    samples = [("m", "A: 2", True), ("n", "x" * 900, False)]
    fields = ("model", "solution", "is_correct")
    listed = [dict(zip(fields, sample, strict=True)) for sample in samples]
    question = {"id": "q", "question": "1+1?", "answer": "#### 2", "samples": listed}
    (tmp_path / "math").mkdir()
    with gzip.open(tmp_path / "math" / "gsm8k_model_solutions.jsonl.gz", "wb") as file:
        file.write(msgspec.json.encode(question) + b"\n")
    found, source = read_solutions(tmp_path, seed=1)
    assert [(one.id, one.text, one.is_correct) for one in found] == [("q/m", "A: 2", True)], (
        "too long ones are left out"
    )
    assert str(tmp_path) in source
