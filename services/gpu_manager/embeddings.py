"""Embeddings of texts, and cosine similarities of pairs of texts. Equal texts of one action are embedded once."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.gpu_manager.engine_calls import (
    BadAnswer,
    CallRefused,
    EngineAttempt,
    OutOfTime,
    Spent,
    check_count,
    numbers_result,
    post,
    rejected,
    too_long,
    upstream_failed,
)
from services.gpu_manager.kinds import ModelEmbed
from shared.kinds.scoring import NoScore
from shared.policy.model.results import AttemptResult

TEXTS_A_CALL: Final = 64
"""Texts of one call: an answer with their embeddings, of 4,096 numbers each, is decoded in some 30 ms."""
MOST_DIMENSIONS: Final = 32_768
_encode: Final = msgspec.json.Encoder().encode


class _Embedding(msgspec.Struct):
    index: int
    embedding: list[float]


class _OpenAiEmbeddings(msgspec.Struct):
    data: list[_Embedding]
    usage: Any = None


class _TreadleEmbeddings(msgspec.Struct):
    embeddings: list[list[float]]


_openai: Final = msgspec.json.Decoder(_OpenAiEmbeddings)
_treadle: Final = msgspec.json.Decoder(_TreadleEmbeddings)


async def embed(params: ModelEmbed, call: EngineAttempt) -> AttemptResult:
    """Return embeddings, or similarities of pairs.

    Raises:
        EngineError: the engine broke the call off, or failed.
        EngineBusy: the engine takes no call now.
    """
    spent = Spent(call)
    pairs = params.pairs or []
    texts = list(dict.fromkeys(params.texts or [text for pair in pairs for text in pair]))
    try:
        rows = await _embedded(texts, params, call, spent)
        number = {text: row for row, text in enumerate(texts)}
        if params.texts is not None:
            return _embeddings_result([rows[number[text]] for text in params.texts], call, spent)
        similarities = [_cosine(rows[number[one]], rows[number[other]]) for one, other in pairs]
        return numbers_result("similarities", similarities, params, call, spent)
    except CallRefused as error:
        return rejected(str(error), spent)
    except (BadAnswer, NoScore) as error:
        return upstream_failed(str(error), spent)
    except OutOfTime:
        return upstream_failed("the embeddings were not complete in the time of the attempt", spent)


async def _embedded(texts: list[str], params: ModelEmbed, call: EngineAttempt, spent: Spent) -> list[list[float]]:
    """Return the embeddings of texts, in order. Raises as `post`."""
    if params.truncate and call.engine.api != "treadle":
        raise CallRefused(
            f"truncate: {call.engine.service!r} has the API 'openai', which cuts no text; send shorter ones"
        )
    rows: list[list[float]] = []
    for begin in range(0, len(texts), TEXTS_A_CALL):
        part = texts[begin : begin + TEXTS_A_CALL]
        if call.engine.api == "treadle":
            body = {"inputs": part, "truncate": params.truncate}
            found = (await post(call, "/v1/embed", body, _treadle)).embeddings
        else:
            found = await _of_openai(part, call, spent)
        check_count("embeddings", len(found), len(part))
        rows += found
    sizes = {len(row) for row in rows}
    if len(sizes) != 1 or not 0 < max(sizes) <= MOST_DIMENSIONS:
        raise BadAnswer(f"the embeddings of the engine's answer have different or invalid sizes: {sorted(sizes)[:4]}")
    return rows


async def _of_openai(texts: list[str], call: EngineAttempt, spent: Spent) -> list[list[float]]:
    body = {"model": call.engine.model, "input": texts, "encoding_format": "float"}
    answer = await post(call, "/v1/embeddings", body, _openai)
    spent.count(answer.usage)
    found = {one.index: one.embedding for one in answer.data}
    if found.keys() != set(range(len(answer.data))):
        raise BadAnswer("the embeddings of the engine's answer are not numbered from 0")
    return [found[index] for index in range(len(found))]


def _cosine(one: list[float], other: list[float]) -> float:
    """Return the cosine of two vectors, from -1 to 1.

    Raises:
        NoScore: one of them is zero, or their numbers are too large.
    """
    first, second = _unit(one), _unit(other)
    return float(np.clip(first @ second, -1.0, 1.0))


def _unit(row: list[float]) -> NDArray[np.float64]:
    vector = np.asarray(row, dtype=np.float64)
    largest = float(np.max(np.abs(vector)))
    if largest == 0.0:
        raise NoScore("an embedding is zero, so it has no similarity")
    vector = vector / largest  # so that no square overflows
    unit: NDArray[np.float64] = vector / np.linalg.norm(vector)
    return unit


def _embeddings_result(rows: list[list[float]], call: EngineAttempt, spent: Spent) -> AttemptResult:
    output = _encode({"embeddings": rows})
    if len(output) > call.output_bytes:
        return upstream_failed(too_long("embeddings", len(output), call.output_bytes), spent)
    return AttemptResult("ok", output=output, usage=spent.usage())
