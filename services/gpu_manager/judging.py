"""Judgements: completions of a judge, and the scores in them.

Laws:
  - a score is formed only of a completion that the model has ended itself (`finish_reason` is `stop`). A completion
    that is cut, filtered or refused is no verdict, and is not asked for again;
  - a text that fills a place is never read as a place, and never becomes a message;
  - at most `attempts` completions, all before the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

import msgspec

from services.gpu_manager.backends.protocol import EngineError
from services.gpu_manager.engine_calls import (
    BadAnswer,
    CallRefused,
    EngineAttempt,
    NoVerdict,
    OutOfTime,
    Spent,
    post,
    rejected,
    upstream_failed,
)
from services.gpu_manager.kinds import ChatMessage, JudgeScore, ModelJudge
from shared.kinds.judgement_schemas import check_document
from shared.kinds.places import fill_text
from shared.kinds.scoring import NoScore, always, at_pointer, compiled, decoded_json, last_match, scaled
from shared.policy.model.results import AttemptResult

CHAT: Final = "/v1/chat/completions"
SHOWN_CHARS: Final = 200
MOST_SEARCH_S: Final = 1.0
"""Seconds of one search for a score. What RE2 does between two matches is not interrupted."""
MOST_STEPS: Final = 1 << 20
"""Most steps of RE2, as matches * characters * size of the program, of a search without a thread: some milliseconds."""
STOP: Final = "stop"
"""`finish_reason` of a completion that the model has ended."""
NO_VERDICT: Final[Mapping[str, str]] = {
    "length": "the judgement was cut at {tokens} tokens; give it more by `max_tokens`, or ask for a shorter one",
    "content_filter": "the engine's content filter ended the judgement",
}
"""`finish_reason` -> why there is no verdict. Another completion would end alike."""
ABORTED: Final = frozenset({"abort", "error"})
"""`finish_reason` of a completion that the engine has given up: it was paused, evicted, or has failed."""


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Chat(msgspec.Struct):
    choices: list[_Choice]
    usage: Any = None


_chat: Final = msgspec.json.Decoder(_Chat)
_encoder: Final = msgspec.json.Encoder()


async def judge(params: ModelJudge, call: EngineAttempt) -> AttemptResult:
    """Return the verdict of a judge, or why there is none.

    Asks for up to `params.attempts` completions, one after the other, until one has a score.

    Raises:
        EngineError: the engine broke the call off, or failed.
        EngineBusy: the engine takes no call now.
    """
    spent = Spent(call)
    if call.engine.api != "openai":
        return rejected(
            f"service: {call.engine.service!r} has the API {call.engine.api!r}, which has no chat; "
            "name a service whose API is 'openai'",
            spent,
        )
    text, reason = "", ""
    for number in range(params.attempts):
        try:
            text = await _completion(params, call, number, spent)
            score = await _score(params, text, call)
        except (BadAnswer, NoScore) as error:
            reason = str(error)
            continue
        except CallRefused as error:
            return rejected(str(error), spent)
        except NoVerdict as error:
            return upstream_failed(str(error), spent)
        except OutOfTime:
            return upstream_failed(_late(number, reason), spent)
        passed = None if params.pass_at is None else score >= params.pass_at
        output = text_output(text, number + 1, call.output_bytes)
        return AttemptResult("ok", passed, score, output, usage=spent.usage(), evidence="separate")
    asked = "one completion" if params.attempts == 1 else f"{params.attempts} completions"
    output = text_output(text, params.attempts, call.output_bytes)
    return upstream_failed(f"no score in {asked}: {reason}", spent, output)


def _late(number: int, reason: str) -> str:
    late = f"the judge's completion {number + 1} was not complete in the time of the attempt"
    return f"{late}; the one before had no score: {reason}" if reason else late


async def _completion(params: ModelJudge, call: EngineAttempt, number: int, spent: Spent) -> str:
    """Return the text of the completion of this number, counted from 0. Raises as `post`, and `NoVerdict`."""
    answer = await post(call, CHAT, chat_request(params, call.engine.model, number), _chat)
    spent.count(answer.usage)
    if not answer.choices:
        raise BadAnswer("the engine's answer has no choice")
    message, reason = answer.choices[0].message, answer.choices[0].finish_reason
    if message.refusal:
        raise NoVerdict(f"the model refused to judge: {message.refusal[:SHOWN_CHARS]}")
    if reason is not None and reason in NO_VERDICT:
        raise NoVerdict(NO_VERDICT[reason].format(tokens=params.max_tokens))
    if reason in ABORTED:
        raise EngineError(f"the engine gave the completion up (finish_reason {reason!r})")
    if reason != STOP:
        raise BadAnswer(f"the completion ended by {str(reason)[:SHOWN_CHARS]!r}; only one that ends by {STOP!r} counts")
    if not message.content:
        raise BadAnswer("the completion has no text")
    return message.content


def chat_request(params: ModelJudge, model: str, number: int) -> dict[str, Any]:
    """Return the body of the request for the completion of this number, counted from 0."""
    body: dict[str, Any] = {
        "model": model,
        "messages": messages_of(params),
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
    }
    if params.seed is not None:
        body["seed"] = params.seed + number
    if params.score.schema is not None:
        form = {"name": "judgement", "schema": params.score.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body


def messages_of(params: ModelJudge) -> list[ChatMessage]:
    """Return the messages to send: those of the template with each place filled, once. O(size)."""
    if params.template is None:
        return params.messages or []
    return [ChatMessage(role=one.role, content=fill_text(one.content, params.fields)) for one in params.template]


async def _score(params: ModelJudge, text: str, call: EngineAttempt) -> float:
    """Return the score in a completion. Raises NoScore."""
    if params.score.regex is None or len(text) ** 2 * compiled(params.score.regex).programsize <= MOST_STEPS:
        return score_in(params.score, text, params.scale)
    left_s = call.deadline - asyncio.get_running_loop().time()
    ends = monotonic() + min(MOST_SEARCH_S, left_s)
    # A search may take a second; RE2 releases the interpreter's lock meanwhile.
    return await asyncio.to_thread(score_in, params.score, text, params.scale, lambda: monotonic() < ends)


def score_in(rule: JudgeScore, text: str, scale: float = 1.0, in_time: Callable[[], bool] = always) -> float:
    """Return the score in a completion, after `scale`. `in_time`: asked after each match of a regular expression.

    Raises:
        NoScore: there is none.
    """
    if rule.regex is not None:
        return scaled(last_match(rule.regex, text, in_time), scale)
    document = decoded_json(text.encode())
    if rule.schema is not None:
        check_document(rule.schema, document, len(text))
    return scaled(at_pointer(document, rule.pointer), scale)


def text_output(text: str, completions: int, limit: int) -> bytes:
    """Return the output: the last completion, and the number of completions. A text that does not fit is cut."""
    output = {"text": text, "completions": completions}
    encoded, kept = _encoder.encode(output), len(text)
    while len(encoded) > limit and kept > 1:
        kept //= 2
        encoded = _encoder.encode({**output, "text": text[:kept], "truncated": True})
    return encoded
