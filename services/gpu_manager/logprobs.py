"""Log-probabilities of given tokens or texts: a teacher.

Our server answers `/v1/logprobs`. vLLM answers `/v1/completions` with `prompt_logprobs`: for each token of the prompt
an object, token id -> {"logprob": ...}, which always has the prompt's own token, beside the likeliest ones. The first
token has null. Each token is looked up by its id, so an engine that ignores the field, or has read other tokens, is
noticed. vLLM writes -9999 for a log-probability of minus infinity.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import msgspec

from services.gpu_manager.engine_calls import (
    BadAnswer,
    CallRefused,
    EngineAttempt,
    OutOfTime,
    Spent,
    post,
    rejected,
    too_long,
    upstream_failed,
)
from services.gpu_manager.kinds import ModelLogprob
from shared.kinds.scoring import NoScore
from shared.policy.model.results import AttemptResult

HIGHEST: Final = 1e-3
"""Most that a log-probability may be above 0: engines compute it in half precision."""
LOWEST: Final = -1e6
"""A lower one is no log-probability."""
_encode: Final = msgspec.json.Encoder().encode


class _Entry(msgspec.Struct):
    logprob: float


class _PromptChoice(msgspec.Struct):
    prompt_logprobs: list[dict[str, _Entry] | None] | None = None


class _Completion(msgspec.Struct):
    choices: list[_PromptChoice]
    usage: Any = None


class _Logprobs(msgspec.Struct):
    logprobs: list[list[float]]
    """Of the tokens that count, by input."""
    tokens: list[list[int]] | None = None
    """All tokens of each input, if texts were sent."""


class _Counted(NamedTuple):
    """Tokens that count, and their log-probabilities."""

    tokens: list[int]
    logprobs: list[float]


_completion: Final = msgspec.json.Decoder(_Completion)
_logprobs: Final = msgspec.json.Decoder(_Logprobs)


async def logprob(params: ModelLogprob, call: EngineAttempt) -> AttemptResult:
    """Return the log-probabilities of the tokens that count, in nats; the score is their mean.

    Raises:
        EngineError: the engine broke the call off, or failed.
        EngineBusy: the engine takes no call now.
    """
    spent = Spent(call)
    try:
        found = await (_of_treadle if call.engine.api == "treadle" else _of_vllm)(params, call, spent)
        if not found.logprobs:
            raise NoScore("no token counts; send a longer text")
        if wrong := [each for each in found.logprobs if not LOWEST <= each <= HIGHEST]:
            raise BadAnswer(f"the engine's answer has {wrong[0]:g} as a log-probability")
    except CallRefused as error:
        return rejected(str(error), spent)
    except (BadAnswer, NoScore) as error:
        return upstream_failed(str(error), spent)
    except OutOfTime:
        return upstream_failed("the log-probabilities were not complete in the time of the attempt", spent)
    output = _encode({"tokens": found.tokens, "logprobs": found.logprobs})
    if len(output) > call.output_bytes:
        return upstream_failed(too_long("log-probabilities", len(output), call.output_bytes), spent)
    score = math.fsum(found.logprobs) / len(found.logprobs)
    return AttemptResult("ok", score=score, output=output, usage=spent.usage(), evidence="separate")


async def _of_treadle(params: ModelLogprob, call: EngineAttempt, spent: Spent) -> _Counted:
    """Return what our server answers for the tokens that count. Raises as `post`."""
    body: dict[str, Any] = {"start": params.start}
    body |= {"texts": [params.text]} if params.tokens is None else {"tokens": [params.tokens]}
    answer = await post(call, "/v1/logprobs", body, _logprobs)
    tokens = [params.tokens] if params.tokens is not None else answer.tokens or []
    if len(tokens) != 1 or len(answer.logprobs) != 1:
        raise BadAnswer("the engine's answer has not one result for one input")
    counted, found = tokens[0][params.start :], answer.logprobs[0]
    if len(counted) != len(found):
        raise BadAnswer(f"the engine's answer has {len(found)} log-probabilities of {len(counted)} tokens")
    spent.tokens += len(tokens[0])
    return _Counted(counted, found)


async def _of_vllm(params: ModelLogprob, call: EngineAttempt, spent: Spent) -> _Counted:
    """Return what vLLM answers for the tokens that count. Raises as `post`."""
    if params.tokens is None:
        raise CallRefused(
            f"text: {call.engine.service!r} has the API 'openai', which takes no text here; "
            "send the ids of its tokens as `tokens`"
        )
    body = {
        "model": call.engine.model,
        "prompt": params.tokens,
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": 1,
    }
    answer = await post(call, "/v1/completions", body, _completion)
    spent.count(answer.usage)
    if not answer.choices:
        raise BadAnswer("the engine's answer has no choice")
    if (places := answer.choices[0].prompt_logprobs) is None:
        raise CallRefused(
            "the engine has no `prompt_logprobs`, which are vLLM's; name a service whose engine is vLLM, "
            "or one of the backend 'torch'"
        )
    if len(places) != len(params.tokens):
        raise BadAnswer(f"the engine's answer has {len(places)} places for {len(params.tokens)} tokens")
    counted = params.tokens[params.start :]
    entries = [(place or {}).get(str(token)) for token, place in zip(counted, places[params.start :], strict=True)]
    found = [entry.logprob for entry in entries if entry is not None]
    if len(found) != len(counted):
        raise BadAnswer("the engine's answer lacks the log-probability of a token")
    return _Counted(counted, found)
