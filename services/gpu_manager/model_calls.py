"""Actions of model services: each kind's calls of a resident engine, and the result of the attempt.

| kind | API `openai` | API `treadle` |
| --- | --- | --- |
| model.judge | `/v1/chat/completions` | refused |
| model.score | refused: each engine has another form | `/v1/score` |
| model.embed | `/v1/embeddings` | `/v1/embed` |
| model.logprob | `/v1/completions` with vLLM's `prompt_logprobs`; tokens alone | `/v1/logprobs` |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from services.gpu_manager.embeddings import embed
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
    upstream_failed,
)
from services.gpu_manager.judging import judge
from services.gpu_manager.kinds import (
    EMBED,
    JUDGE,
    LOGPROB,
    SCORE,
    ModelEmbed,
    ModelJudge,
    ModelLogprob,
    ModelScore,
    ScoredPair,
)
from services.gpu_manager.logprobs import logprob
from shared.kinds.scoring import NoScore
from shared.policy.model.results import AttemptResult, refused
from shared.runtime.errors import BadRequest
from shared.runtime.validation import decoded

_judge: Final = msgspec.json.Decoder(ModelJudge)
_score: Final = msgspec.json.Decoder(ModelScore)
_logprob: Final = msgspec.json.Decoder(ModelLogprob)
_embed: Final = msgspec.json.Decoder(ModelEmbed)


class _Scores(msgspec.Struct):
    scores: list[float]


_scores: Final = msgspec.json.Decoder(_Scores)


async def perform(work: str, params: bytes, call: EngineAttempt) -> AttemptResult:
    """Execute one action on its engine, before `call.deadline`.

    Args:
        work: kind of the action.
        params: its parameters, as JSON.
        call: the engine, and how to reach it.

    Raises:
        EngineError: the engine broke the call off, or failed. The attempt is lost.
        EngineBusy: the engine takes no call now. The attempt may be repeated.
    """
    try:
        if work == JUDGE:
            return await judge(decoded(_judge, params, f"params of {work}"), call)
        if work == SCORE:
            return await score(decoded(_score, params, f"params of {work}"), call)
        if work == LOGPROB:
            return await logprob(decoded(_logprob, params, f"params of {work}"), call)
        if work == EMBED:
            return await embed(decoded(_embed, params, f"params of {work}"), call)
    except BadRequest as error:
        return refused(str(error))
    return refused(f"this node does not execute {work}")


async def score(params: ModelScore, call: EngineAttempt) -> AttemptResult:
    """Return the scores of a reward model. Raises as `perform`."""
    spent = Spent(call)
    if call.engine.api != "treadle":
        return rejected(
            f"service: {call.engine.service!r} has the API {call.engine.api!r}, whose engines have no common form of "
            "scores; name a service of the backend 'torch'",
            spent,
        )
    inputs = params.inputs
    try:
        body: dict[str, Any] = {"inputs": _sent(inputs), "truncate": params.truncate}
        if params.label is not None:
            body["label"] = params.label
        answer = await post(call, "/v1/score", body, _scores)
        check_count("scores", len(answer.scores), len(inputs))
        return numbers_result("scores", answer.scores, params, call, spent)
    except CallRefused as error:
        return rejected(str(error), spent)
    except (BadAnswer, NoScore) as error:
        return upstream_failed(str(error), spent)
    except OutOfTime:
        return upstream_failed("the scores were not complete in the time of the attempt", spent)


def _sent(inputs: Sequence[str | ScoredPair]) -> list[str | list[str]]:
    return [[one.prompt, one.answer] if isinstance(one, ScoredPair) else one for one in inputs]
