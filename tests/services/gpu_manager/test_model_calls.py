"""Scores, embeddings and log-probabilities, against engines that answer as a test writes."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import msgspec
import pytest

from services.gpu_manager.backends.protocol import EngineError, EngineGone
from services.gpu_manager.embeddings import TEXTS_A_CALL
from services.gpu_manager.engine_calls import EngineBusy
from services.gpu_manager.kinds import EMBED, LOGPROB, SCORE
from services.gpu_manager.torch_server import bodies
from shared.policy.model.results import AttemptResult
from tests.services.gpu_manager.engines import Answer, WrittenEngine, broken, hang, json, performed, running_engine


async def called(
    work: str, params: dict[str, Any], *answers: Answer, **more: Any
) -> tuple[AttemptResult, WrittenEngine]:
    async with running_engine(*answers) as engine:
        return await performed(engine, work, params, **more), engine


def output(result: AttemptResult) -> Any:
    return msgspec.json.decode(result.output)


# ---- model.score -----------------------------------------------------------------------------------------------------


async def test_one_input_has_a_score() -> None:
    params = {"inputs": [{"prompt": "p", "answer": "a"}], "scale": 0.5, "pass_at": 1.0, "label": 1, "truncate": True}

    result, engine = await called(SCORE, params, json({"scores": [2.5]}), api="treadle", gpus=0.25)

    assert (result.status, result.score, result.passed, result.evidence) == ("ok", 1.25, True, "separate")
    assert output(result) == {"scores": [2.5]}
    assert 0 < result.usage["gpu_s"] < 30
    assert (engine.paths, engine.bodies) == (["/v1/score"], [{"inputs": [["p", "a"]], "truncate": True, "label": 1}])


async def test_several_inputs_have_scores_in_the_output_alone() -> None:
    result, engine = await called(SCORE, {"inputs": ["a", "b"], "pass_at": 0}, json({"scores": [-1, 2]}), api="treadle")

    assert (result.status, result.score, result.passed, result.evidence) == ("ok", None, None, "")
    assert output(result) == {"scores": [-1.0, 2.0]}
    assert engine.bodies == [{"inputs": ["a", "b"], "truncate": False}], "two texts are no pair"


async def test_scores_need_our_own_server() -> None:
    result, engine = await called(SCORE, {"inputs": ["a"]}, json({"scores": [1]}))
    assert (result.status, engine.paths) == ("refused", [])
    assert "name a service of the backend 'torch'" in result.reason


BAD_SCORES: list[tuple[object, str]] = [
    ({"scores": [1, 2]}, "the engine's answer has 2 scores for 1 inputs"),
    ({"scores": []}, "the engine's answer has 0 scores for 1 inputs"),
    ({"scores": ["1"]}, "the engine's answer cannot be read"),
    ({"scores": [None]}, "the engine's answer cannot be read"),
    ({"scores": 1}, "the engine's answer cannot be read"),
    ({}, "the engine's answer cannot be read"),
    (b'{"scores": [NaN]}', "the engine's answer cannot be read"),
    (b'{"scores": [Infinity]}', "the engine's answer cannot be read"),
    (b'{"scores": [1e999]}', "the engine's answer cannot be read"),
    (b"\xff\xfe", "the engine's answer cannot be read"),
    (b'{"x": ' + b"[" * 100_000, "the engine's answer cannot be read"),
]


@pytest.mark.parametrize(("body", "reason"), BAD_SCORES, ids=range(len(BAD_SCORES)))
async def test_an_answer_of_another_form_is_no_score(body: object, reason: str) -> None:
    result, _ = await called(SCORE, {"inputs": ["a"]}, json(body), api="treadle")
    assert (result.status, result.score) == ("upstream-failed", None)
    assert result.reason.startswith(reason)


async def test_a_score_that_is_not_finite_after_its_scale_is_none() -> None:
    result, _ = await called(SCORE, {"inputs": ["a"], "scale": 1e9}, json({"scores": [1e308]}), api="treadle")
    assert (result.status, result.score, result.reason) == ("upstream-failed", None, "the score is not finite")


async def test_errors_of_our_own_server() -> None:
    refusal = {"code": "too_long", "message": "input 0 has 600 tokens, and the model reads 512; shorten it"}
    result, _ = await called(SCORE, {"inputs": ["a"]}, json(refusal, 422), api="treadle")
    assert (result.status, result.reason) == ("refused", f"the engine answered 422: {refusal['message']}")

    with pytest.raises(EngineError, match="409: the model is asleep1"):
        await called(
            SCORE, {"inputs": ["a"]}, json({"code": "evicted", "message": "the model is asleep1"}, 409), api="treadle"
        )
    with pytest.raises(EngineBusy) as busy:
        await called(SCORE, {"inputs": ["a"]}, json({"message": "9 tokens wait"}, 503, retry_after="3"), api="treadle")
    assert busy.value.retry_in_s == 3.0
    with pytest.raises(EngineGone):
        await called(SCORE, {"inputs": ["a"]}, broken(b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{"), api="treadle")


@pytest.mark.parametrize(
    ("work", "params"), [(SCORE, {"inputs": ["a"]}), (EMBED, {"texts": ["a"]}), (LOGPROB, {"tokens": [1, 2]})]
)
async def test_each_call_ends_at_the_deadline(work: str, params: dict[str, Any]) -> None:
    async with running_engine(hang) as engine:
        result = await performed(engine, work, params, api="treadle", within_s=0.3)
        await asyncio.wait_for(engine.lost.wait(), 10)
    assert result.status == "upstream-failed"
    assert result.reason.endswith("not complete in the time of the attempt")


async def test_scores_that_do_not_fit_are_not_cut() -> None:
    result, _ = await called(
        SCORE, {"inputs": ["a"] * 200}, json({"scores": [0.123456] * 200}), api="treadle", output_bytes=500
    )
    assert (result.status, output(result)) == ("upstream-failed", {})
    assert result.reason == "the scores have 1812 bytes, and a result may have 500; send less in one action"


# ---- model.embed -----------------------------------------------------------------------------------------------------


def openai_rows(*rows: list[float], tokens: int = 5) -> dict[str, Any]:
    data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
    return {
        "object": "list",
        "data": data[::-1],
        "model": "m",
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


async def test_embeddings_are_in_the_order_of_the_texts_and_equal_texts_are_sent_once() -> None:
    result, engine = await called(EMBED, {"texts": ["a", "b", "a"]}, json(openai_rows([1, 0], [0, 2])))

    assert (result.status, result.score) == ("ok", None)
    assert output(result) == {"embeddings": [[1.0, 0.0], [0.0, 2.0], [1.0, 0.0]]}
    assert (result.usage["tokens"], engine.paths) == (5, ["/v1/embeddings"])
    assert engine.bodies == [{"model": "the-model", "input": ["a", "b"], "encoding_format": "float"}]


async def test_our_own_server_embeds_too() -> None:
    params = {"texts": ["a"], "truncate": True}
    result, engine = await called(EMBED, params, json({"embeddings": [[3, 4]]}), api="treadle")
    assert output(result) == {"embeddings": [[3.0, 4.0]]}
    assert (engine.paths, engine.bodies) == (["/v1/embed"], [{"inputs": ["a"], "truncate": True}])


COSINES: list[tuple[list[float], list[float], float]] = [
    ([1, 0], [0, 1], 0.0),
    ([3, 4], [30, 40], 1.0),
    ([1, 2], [-1, -2], -1.0),
    ([1, 0], [1, 1], math.sqrt(0.5)),
    ([1e200, 1e200], [1e200, 0], math.sqrt(0.5)),
    ([1e-200, 0], [1e-200, 0], 1.0),
]


@pytest.mark.parametrize(("one", "other", "cosine"), COSINES, ids=range(len(COSINES)))
async def test_one_pair_has_a_score(one: list[float], other: list[float], cosine: float) -> None:
    params = {"pairs": [["a", "b"]], "pass_at": 0.5, "scale": 2.0}
    result, _ = await called(EMBED, params, json(openai_rows(one, other)))
    assert result.status == "ok"
    assert result.score == pytest.approx(2 * cosine, abs=1e-9)
    assert result.passed is (cosine >= 0.25)
    assert output(result) == {"similarities": [pytest.approx(cosine, abs=1e-9)]}


async def test_several_pairs_have_similarities_in_the_output_alone() -> None:
    params = {"pairs": [["a", "b"], ["b", "a"], ["a", "a"]]}
    result, engine = await called(EMBED, params, json(openai_rows([1, 0], [0, 1])))
    assert (result.score, output(result)) == (None, {"similarities": [0.0, 0.0, 1.0]})
    assert engine.bodies[0]["input"] == ["a", "b"]


async def test_many_texts_are_sent_in_several_calls() -> None:
    texts = [str(number) for number in range(TEXTS_A_CALL + 2)]
    first = json(openai_rows(*([float(number), 1.0] for number in range(TEXTS_A_CALL))))
    second = json(openai_rows([64.0, 1.0], [65.0, 1.0]))

    result, engine = await called(EMBED, {"texts": texts}, first, second)

    assert [row[0] for row in output(result)["embeddings"]] == list(range(66))
    assert [len(body["input"]) for body in engine.bodies] == [64, 2]
    assert result.usage["tokens"] == 10


BAD_ROWS: list[tuple[object, str]] = [
    (openai_rows([1, 0]), "the engine's answer has 1 embeddings for 2 inputs"),
    (openai_rows([1, 0], [1]), "the embeddings of the engine's answer have different or invalid sizes: [1, 2]"),
    (openai_rows([], []), "the embeddings of the engine's answer have different or invalid sizes: [0]"),
    (openai_rows([0, 0], [0, 0]), "an embedding is zero, so it has no similarity"),
    ({"data": [{"index": 1, "embedding": [1]}, {"index": 1, "embedding": [1]}]},
     "the embeddings of the engine's answer are not numbered from 0"),
    ({"data": [{"index": 0, "embedding": "AAAA"}]}, "the engine's answer cannot be read"),
    (b'{"data": [{"index": 0, "embedding": [NaN]}]}', "the engine's answer cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "reason"), BAD_ROWS, ids=range(len(BAD_ROWS)))
async def test_embeddings_of_another_form_are_no_score(body: object, reason: str) -> None:
    result, _ = await called(EMBED, {"pairs": [["a", "b"]]}, json(body))
    assert (result.status, result.score) == ("upstream-failed", None)
    assert result.reason.startswith(reason)


async def test_embeddings_that_do_not_fit_are_not_cut() -> None:
    result, _ = await called(EMBED, {"texts": ["a"]}, json(openai_rows([0.25] * 400)), output_bytes=1000)
    assert result.status == "upstream-failed"
    assert result.reason == "the embeddings have 2018 bytes, and a result may have 1000; send less in one action"


async def test_only_our_own_server_cuts_texts() -> None:
    result, engine = await called(EMBED, {"texts": ["a"], "truncate": True}, json(openai_rows([1])))
    assert (result.status, engine.paths) == ("refused", [])
    assert "which cuts no text; send shorter ones" in result.reason


# ---- model.logprob ---------------------------------------------------------------------------------------------------


async def test_our_own_server_scores_given_tokens() -> None:
    params = {"tokens": [5, 6, 7, 8], "start": 2}
    result, engine = await called(LOGPROB, params, json({"logprobs": [[-1, -2]]}), api="treadle")

    assert (result.status, result.score, result.passed, result.evidence) == ("ok", -1.5, None, "separate")
    assert output(result) == {"tokens": [7, 8], "logprobs": [-1.0, -2.0]}
    assert result.usage["tokens"] == 4
    assert (engine.paths, engine.bodies) == (["/v1/logprobs"], [{"start": 2, "tokens": [[5, 6, 7, 8]]}])


async def test_our_own_server_scores_a_text() -> None:
    answer = json({"logprobs": [[-0.5, 0.0005]], "tokens": [[1, 2, 3]]})
    result, engine = await called(LOGPROB, {"text": "hi"}, answer, api="treadle")
    assert output(result) == {"tokens": [2, 3], "logprobs": [-0.5, 0.0005]}
    assert engine.bodies == [{"start": 1, "texts": ["hi"]}]


BAD_LOGPROBS: list[tuple[object, str]] = [
    ({"logprobs": [[-1, -2, -3]]}, "the engine's answer has 3 log-probabilities of 2 tokens"),
    ({"logprobs": [[-1]]}, "the engine's answer has 1 log-probabilities of 2 tokens"),
    ({"logprobs": []}, "the engine's answer has not one result for one input"),
    ({"logprobs": [[-1, -2], [-1, -2]]}, "the engine's answer has not one result for one input"),
    ({"logprobs": [[-1, 0.5]]}, "the engine's answer has 0.5 as a log-probability"),
    ({"logprobs": [[-1, -1e308]]}, "the engine's answer has -1e+308 as a log-probability"),
    ({"logprobs": [[-1, None]]}, "the engine's answer cannot be read"),
    (b'{"logprobs": [[-1, -Infinity]]}', "the engine's answer cannot be read"),
]


@pytest.mark.parametrize(("body", "reason"), BAD_LOGPROBS, ids=range(len(BAD_LOGPROBS)))
async def test_log_probabilities_of_another_form_are_none(body: object, reason: str) -> None:
    result, _ = await called(LOGPROB, {"tokens": [5, 6, 7]}, json(body), api="treadle")
    assert (result.status, result.score) == ("upstream-failed", None)
    assert result.reason.startswith(reason)


async def test_a_text_of_one_token_has_no_log_probability() -> None:
    answer = json({"logprobs": [[]], "tokens": [[1]]})
    result, _ = await called(LOGPROB, {"text": "a"}, answer, api="treadle")
    assert (result.status, result.reason) == ("upstream-failed", "no token counts; send a longer text")


def places(*each: dict[str, float] | None) -> dict[str, Any]:
    found = [
        None
        if one is None
        else {key: {"logprob": value, "rank": 1, "decoded_token": "x"} for key, value in one.items()}
        for one in each
    ]
    choice = {"index": 0, "text": "y", "finish_reason": "length", "prompt_logprobs": found}
    return {"choices": [choice], "usage": {"total_tokens": 4}}


async def test_vllm_is_asked_for_the_log_probabilities_of_its_prompt() -> None:
    answer = json(places(None, {"6": -3.0, "9": -0.1}, {"7": -0.25}))

    result, engine = await called(LOGPROB, {"tokens": [5, 6, 7]}, answer)

    assert (result.status, result.score) == ("ok", -1.625)
    assert output(result) == {"tokens": [6, 7], "logprobs": [-3.0, -0.25]}
    assert engine.paths == ["/v1/completions"]
    assert engine.bodies == [
        {"model": "the-model", "prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
    ]


async def test_a_token_without_any_probability_at_vllm_is_kept() -> None:
    result, _ = await called(LOGPROB, {"tokens": [5, 6]}, json(places(None, {"6": -9999.0})))
    assert (result.status, result.score) == ("ok", -9999.0)


BAD_PLACES: list[tuple[object, str, str]] = [
    ({"choices": [{"text": "y"}]}, "refused", "the engine has no `prompt_logprobs`, which are vLLM's"),
    ({"choices": []}, "upstream-failed", "the engine's answer has no choice"),
    (places(None, {"6": -1.0}), "upstream-failed", "the engine's answer has 2 places for 3 tokens"),
    (places(None, {"9": -1.0}, {"7": -1.0}), "upstream-failed", "the engine's answer lacks the log-probability of a"),
    (places(None, None, {"7": -1.0}), "upstream-failed", "the engine's answer lacks the log-probability of a token"),
    (places(None, {"6": 2.0}, {"7": -1.0}), "upstream-failed", "the engine's answer has 2 as a log-probability"),
]


@pytest.mark.parametrize(("body", "status", "reason"), BAD_PLACES, ids=range(len(BAD_PLACES)))
async def test_another_engine_than_vllm_is_noticed(body: object, status: str, reason: str) -> None:
    result, _ = await called(LOGPROB, {"tokens": [5, 6, 7]}, json(body))
    assert (result.status, result.score) == (status, None)
    assert result.reason.startswith(reason)


async def test_vllm_takes_no_text() -> None:
    result, engine = await called(LOGPROB, {"text": "a"}, json({}))
    assert (result.status, engine.paths) == ("refused", [])
    assert "send the ids of its tokens as `tokens`" in result.reason


# ---- our own server's contract ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "params", "form", "answered"),
    [
        (SCORE, {"inputs": ["a", {"prompt": "p", "answer": "b"}], "label": 2}, bodies.ScoreBody,
         bodies.Scores([1.0, 2.0])),
        (EMBED, {"pairs": [["a", "b"]], "truncate": True}, bodies.EmbedBody, bodies.Embeddings([[1.0], [1.0]])),
        (LOGPROB, {"tokens": [1, 2, 3], "start": 2}, bodies.LogprobsBody, bodies.Logprobs([[-1.0]])),
        (LOGPROB, {"text": "a", "start": 1}, bodies.LogprobsBody, bodies.Logprobs([[-1.0]], [[4, 5]])),
    ],
    ids=["score", "embed", "tokens", "text"],
)  # fmt: skip
async def test_our_own_server_reads_what_is_sent_and_its_answer_is_read(
    work: str, params: dict[str, Any], form: type[msgspec.Struct], answered: msgspec.Struct
) -> None:
    result, engine = await called(work, params, json(answered), api="treadle")

    assert result.status == "ok"
    msgspec.convert(engine.bodies[0], form)  # raises for an unknown field or a wrong type
