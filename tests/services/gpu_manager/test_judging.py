"""Judgements against an engine that answers as a test writes, and against one that misbehaves."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from services.gpu_manager.backends.protocol import EngineError, EngineGone, OutOfMemory
from services.gpu_manager.engine_calls import MOST_BODY, EngineAddress, EngineAttempt, EngineBusy
from services.gpu_manager.judging import text_output
from services.gpu_manager.kinds import JUDGE
from services.gpu_manager.model_calls import perform
from shared.policy.model.results import AttemptResult
from shared.runtime.http_streams import open_streams
from tests.services.gpu_manager.engines import (
    Answer,
    WrittenEngine,
    broken,
    completion,
    flood,
    hang,
    json,
    late,
    performed,
    running_engine,
    trickle,
)
from tests.services.trajectory_router.engine import free_port
from tests.services.trajectory_router.engines.llamacpp import LlamaWorker

ASK = [{"role": "user", "content": "Grade it."}]
REGEX: dict[str, Any] = {"messages": ASK, "score": {"regex": r"score: ([0-9.]+)"}}
SCHEMA_OF_SCORE = {"type": "object", "properties": {"score": {"type": "number"}}, "required": ["score"]}
SCHEMA: dict[str, Any] = {"messages": ASK, "score": {"schema": SCHEMA_OF_SCORE}}


async def judged(params: dict[str, Any], *answers: Answer, **more: Any) -> tuple[AttemptResult, WrittenEngine]:
    async with running_engine(*answers) as engine:
        return await performed(engine, JUDGE, params, **more), engine


async def test_a_judgement_is_asked_for_as_the_parameters_say() -> None:
    params = {
        "template": [
            {"role": "system", "content": "You grade."},
            {"role": "user", "content": "Q: {q} A: {a}"},
        ],
        "fields": {"q": "1+1?", "a": "{q}"},
        "score": {"regex": "([0-9]+)/10"},
        "scale": 0.1,
        "pass_at": 0.8,
        "max_tokens": 50,
        "seed": 3,
    }  # fmt: skip

    result, engine = await judged(params, completion("fine: 8/10", tokens=31), gpus=0.5)

    assert (result.status, result.passed, result.evidence) == ("ok", True, "separate")
    assert result.score == pytest.approx(0.8)
    assert msgspec.json.decode(result.output) == {"text": "fine: 8/10", "completions": 1}
    assert result.usage["tokens"] == 31
    assert 0 < result.usage["gpu_s"] < 30
    assert engine.paths == ["/v1/chat/completions"]
    assert engine.bodies == [
        {
            "model": "the-model",
            "messages": [
                {"role": "system", "content": "You grade."},
                {"role": "user", "content": "Q: 1+1? A: {q}"},
            ],
            "max_tokens": 50,
            "temperature": 0.0,
            "seed": 3,
        }
    ]


async def test_a_schema_is_sent_to_the_engine() -> None:
    rule = {"schema": SCHEMA_OF_SCORE, "pointer": "/grades/1"}

    result, engine = await judged({"messages": ASK, "score": rule}, completion('{"score": 1, "grades": [1, 0.25]}'))

    assert (result.status, result.score, result.passed) == ("ok", 0.25, None)
    assert engine.bodies[0]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "judgement", "schema": SCHEMA_OF_SCORE, "strict": True},
    }


async def test_a_judgement_that_violates_its_schema_is_asked_for_again_and_is_no_verdict() -> None:
    points = {**SCHEMA_OF_SCORE, "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 10}}}
    params = {"messages": ASK, "score": {"schema": points}, "pass_at": 8, "attempts": 2}

    result, engine = await judged(params, completion('{"score": 95}'), completion('{"score": 9}'))
    assert (result.status, result.score, result.passed, len(engine.bodies)) == ("ok", 9, True, 2)

    result, _ = await judged(params, completion('{"score": 95}'), completion('{"score": true}'))
    assert (result.status, result.score, result.passed) == ("upstream-failed", None, None)
    assert "violates its schema at '/score'" in result.reason


async def test_an_unparsable_completion_is_asked_for_again_with_another_seed() -> None:
    answers = completion("hm"), completion(None), completion("score: 5"), completion("score: 9")

    result, engine = await judged({**REGEX, "seed": 40}, *answers)

    assert (result.status, result.score, len(engine.bodies)) == ("ok", 5.0, 3)
    assert [body["seed"] for body in engine.bodies] == [40, 41, 42]
    assert msgspec.json.decode(result.output) == {"text": "score: 5", "completions": 3}
    assert result.usage["tokens"] == 21, "all completions have been paid for"


async def test_without_a_seed_none_is_sent() -> None:
    _, engine = await judged(REGEX, completion("hm"), completion("score: 1"))
    assert ["seed" in body for body in engine.bodies] == [False, False]


async def test_a_judge_without_a_score_in_its_last_completion_is_no_verdict() -> None:
    result, engine = await judged({**REGEX, "attempts": 2}, completion("a"), completion("b"), completion("score: 1"))

    assert (result.status, result.score, result.passed, result.evidence) == ("upstream-failed", None, None, "")
    assert result.reason == "no score in 2 completions: the pattern does not match the answer"
    assert msgspec.json.decode(result.output)["text"] == "b"
    assert len(engine.bodies) == 2


NO_VERDICT: list[tuple[Answer, str]] = [
    (completion("score: 10", "length"), "the judgement was cut at 1024 tokens; give it more by `max_tokens`"),
    (completion("score: 10", "content_filter"), "the engine's content filter ended the judgement"),
    (completion(None, refusal="I cannot grade this."), "the model refused to judge: I cannot grade this."),
    (completion("score: 10", refusal="no"), "the model refused to judge: no"),
]


@pytest.mark.parametrize(("answer", "reason"), NO_VERDICT, ids=["length", "filter", "refusal", "refusal-and-text"])
async def test_a_completion_that_is_cut_filtered_or_refused_is_no_verdict(answer: Answer, reason: str) -> None:
    result, engine = await judged(REGEX, answer, completion("score: 10"))

    assert (result.status, result.score, result.passed) == ("upstream-failed", None, None)
    assert result.reason.startswith(reason)
    assert len(engine.bodies) == 1, "another completion would end alike"
    assert result.usage["tokens"] == 7


@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_a_completion_that_the_engine_has_given_up_is_a_lost_attempt(reason: str) -> None:
    with pytest.raises(EngineError, match=f"gave the completion up .*{reason}"):
        await judged(REGEX, completion("score: 10", reason))


@pytest.mark.parametrize("reason", [None, "tool_calls", "function_call", ""])
async def test_only_a_completion_that_has_stopped_by_itself_counts(reason: str | None) -> None:
    result, _ = await judged({**REGEX, "attempts": 1}, completion("score: 10", reason))
    assert (result.status, result.score) == ("upstream-failed", None)
    assert "only one that ends by 'stop' counts" in result.reason


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 422])
async def test_what_the_engine_rejects_is_refused(status: int) -> None:
    said = {"error": {"message": "This model's maximum context length is 2048 tokens.", "code": status}}

    result, engine = await judged(REGEX, json(said, status))

    assert (result.status, result.score) == ("refused", None)
    assert result.reason == f"the engine answered {status}: This model's maximum context length is 2048 tokens."
    assert len(engine.bodies) == 1


BUSY: list[tuple[int, dict[str, str], float]] = [
    (429, {"retry_after": "7"}, 7.0),
    (503, {"retry_after": "0.5"}, 0.5),
    (503, {}, 0.0),
    (503, {"retry_after": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0.0),
    (503, {"retry_after": "-1"}, 0.0),
    (429, {"retry_after": "999999999"}, 3600.0),
    (408, {"retry_after": "nan"}, 0.0),
]


@pytest.mark.parametrize(("status", "headers", "retry_in_s"), BUSY, ids=range(len(BUSY)))
async def test_an_overloaded_engine_says_when(status: int, headers: dict[str, str], retry_in_s: float) -> None:
    with pytest.raises(EngineBusy, match=f"the engine answered {status}: full") as busy:
        await judged(REGEX, json({"error": "full"}, status, **headers))
    assert busy.value.retry_in_s == retry_in_s


FAILED: list[tuple[int, object, type[EngineError], str]] = [
    (500, {"error": {"message": "EngineCore died"}}, EngineError, "the engine answered 500: EngineCore died"),
    (502, b"<html>bad\ngateway</html>", EngineError, "the engine answered 502: <html>bad gateway</html>"),
    (500, {"detail": "CUDA out of memory. Tried to allocate"}, OutOfMemory, "the engine answered 500: CUDA out of mem"),
    (507, {"code": "out_of_memory", "message": "no room"}, OutOfMemory, "the engine answered 507: no room"),
    (409, {"code": "evicted", "message": "the model is asleep1"}, EngineError, "the engine answered 409: the model is"),
    (500, b"\xff\x00", EngineError, "the engine answered 500: \ufffd"),
    (500, b"", EngineError, "the engine answered 500"),
    (500, b"[" * 9000, EngineError, "the engine answered 500: [[["),
]


@pytest.mark.parametrize(("status", "body", "error", "reason"), FAILED, ids=range(len(FAILED)))
async def test_a_failed_engine_is_a_lost_attempt(
    status: int, body: object, error: type[EngineError], reason: str
) -> None:
    with pytest.raises(EngineError) as raised:
        await judged(REGEX, json(body, status))
    assert type(raised.value) is error
    assert raised.value.reason.startswith(reason)
    assert len(raised.value.reason) <= 400


BREAKS = {
    "no answer": b"",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "no body": b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n",
    "half a body": b'HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{"choices": [{"message": {"content": "score: 10"}',
    "half a chunk": b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n30\r\n{"choices": [{"mess',
    "no last chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n",
    "half of an error": b'HTTP/1.1 400 Bad Request\r\ncontent-length: 90\r\n\r\n{"error": ',
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
}


@pytest.mark.parametrize("sent", BREAKS.values(), ids=BREAKS)
async def test_an_answer_that_breaks_off_is_a_lost_attempt_and_never_a_verdict(sent: bytes) -> None:
    with pytest.raises(EngineGone, match="the engine "):
        await judged(REGEX, broken(sent))


async def test_an_engine_that_is_not_there_is_gone() -> None:
    with pytest.raises(EngineGone, match="did not answer"):
        await performed(f"http://127.0.0.1:{free_port()}", JUDGE, REGEX)


GARBAGE: dict[str, bytes | object] = {
    "html": b"<html>score: 10</html>",
    "empty": b"",
    "cut JSON": b'{"choices": [{"message": {"content": "score: 10"}, "finish_reason": "stop"',
    "NaN": b'{"choices": [{"message": {"content": "score: 10"}, "finish_reason": "stop", "logprobs": NaN}]}',
    "infinite": b'{"choices": [{"message": {"content": "score: 10"}, "finish_reason": "stop"}], "usage": {"n": 1e999}}',
    "no UTF-8": b'{"choices": [{"message": {"content": "\xff score: 10"}, "finish_reason": "stop"}]}',
    "half a surrogate pair": b'{"choices": [{"message": {"content": "\\ud800 score: 10"}, "finish_reason": "stop"}]}',
    "deep": b'{"choices": [{"message": {"content": "score: 10"}, "finish_reason": "stop"}], "x": ' + b"[" * 100_000,
    "no choices": {"choices": []},
    "no list": {"choices": "score: 10"},
    "no message": {"choices": [{"finish_reason": "stop", "text": "score: 10"}]},
    "text as a list": {"choices": [{"message": {"content": [{"text": "score: 10"}]}, "finish_reason": "stop"}]},
    "a number": b"10",
}


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE)
async def test_an_answer_of_another_form_is_no_verdict(body: object) -> None:
    result, engine = await judged({**REGEX, "attempts": 2}, json(body))

    assert (result.status, result.score, result.passed) == ("upstream-failed", None, None)
    assert result.reason.startswith("no score in 2 completions: the engine's answer ")
    assert len(engine.bodies) == 2


async def test_garbage_and_then_a_verdict_is_a_verdict() -> None:
    result, _ = await judged(REGEX, json(b"<html>"), completion("score: 4"))
    assert (result.status, result.score) == ("ok", 4.0)


async def test_a_body_without_end_is_read_up_to_a_bound() -> None:
    async with running_engine(flood) as engine:
        result = await performed(engine, JUDGE, {**REGEX, "attempts": 1})
        await asyncio.wait_for(engine.lost.wait(), 10)

    assert result.status == "upstream-failed"
    assert result.reason == f"no score in one completion: the engine's answer has more than {MOST_BODY} bytes"


@pytest.mark.parametrize("answer", [hang, trickle])
async def test_a_slow_answer_ends_at_the_deadline_and_its_connection_is_closed(answer: Answer) -> None:
    async with running_engine(answer) as engine:
        result = await performed(engine, JUDGE, REGEX, within_s=0.3)
        await asyncio.wait_for(engine.lost.wait(), 10)

    assert (result.status, result.score) == ("upstream-failed", None)
    assert result.reason == "the judge's completion 1 was not complete in the time of the attempt"


async def test_a_verdict_after_the_deadline_does_not_count() -> None:
    result, _ = await judged(REGEX, late(completion("score: 1"), 3.0), within_s=0.3)
    assert (result.status, result.score) == ("upstream-failed", None)


async def test_the_deadline_is_one_for_all_completions() -> None:
    """Each is quick enough, and all of them are not."""
    result, engine = await judged({**REGEX, "attempts": 16}, late(completion("hm"), 0.4), within_s=1.0)
    assert result.status == "upstream-failed"
    assert "was not complete in the time of the attempt" in result.reason
    assert len(engine.bodies) < 16


async def test_the_deadline_may_come_in_the_second_completion() -> None:
    result, engine = await judged(REGEX, completion("hm"), hang, within_s=0.5)

    assert result.status == "upstream-failed"
    assert result.reason == (
        "the judge's completion 2 was not complete in the time of the attempt; the one before had no score: the "
        "pattern does not match the answer"
    )
    assert len(engine.bodies) == 2


async def test_a_cancelled_call_is_closed_at_the_engine() -> None:
    async with running_engine(hang) as engine:
        attempt = asyncio.create_task(performed(engine, JUDGE, REGEX))
        await engine.called.wait()
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        await asyncio.wait_for(engine.lost.wait(), 10)


@pytest.mark.parametrize(
    "usage", [None, 3, "many", {}, {"total_tokens": "9"}, {"total_tokens": -4}, {"total_tokens": True},
              {"total_tokens": 1e300}]
)  # fmt: skip
async def test_a_usage_that_is_none_does_not_count(usage: object) -> None:
    choice = {"message": {"content": "score: 2"}, "finish_reason": "stop"}
    result, _ = await judged(REGEX, json({"choices": [choice], "usage": usage}))
    assert (result.score, list(result.usage)) == (2.0, ["gpu_s"])


async def test_our_own_server_has_no_chat() -> None:
    result, engine = await judged(REGEX, completion("score: 1"), api="treadle")
    assert (result.status, engine.paths) == ("refused", [])
    assert "name a service whose API is 'openai'" in result.reason


def test_a_long_text_is_cut_and_flagged() -> None:
    whole = text_output("abc", 1, 1000)
    cut = text_output('"' * 5000, 2, 1000)

    assert msgspec.json.decode(whole) == {"text": "abc", "completions": 1}
    assert len(cut) <= 1000
    found = msgspec.json.decode(cut)
    assert (found["truncated"], set(found["text"]), found["completions"]) == (True, {'"'}, 2)


async def test_the_score_of_a_long_judgement_is_found_although_the_output_is_cut() -> None:
    result, _ = await judged(REGEX, completion("a" * 50_000 + " score: 3"), output_bytes=2000)
    assert (result.score, len(result.output) <= 2000) == (3.0, True)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (b"no json", "params of model.judge is not JSON"),
        (b'{"service": "a", "messages": [], "score": {"regex": "(a)"}}', "messages: must have at least 1 item"),
        (b'{"service": "a", "mesages": [], "score": {"regex": "(a)"}}', "unknown field `mesages`"),
    ],
)
async def test_invalid_parameters_are_refused_and_not_sent(params: bytes, message: str) -> None:
    async with running_engine(completion("score: 1")) as engine:
        result = await performed(engine, JUDGE, params)
    assert (result.status, engine.paths) == ("refused", [])
    assert message in result.reason


async def test_an_unknown_kind_is_refused() -> None:
    async with running_engine(completion("score: 1")) as engine:
        result = await performed(engine, "model.dance", REGEX)
    assert (result.status, result.reason) == ("refused", "this node does not execute model.dance")


async def test_many_judgements_share_one_client() -> None:
    async with running_engine(completion("score: 6")) as engine, open_streams(connect_s=5.0):
        results = await asyncio.gather(*(performed(engine, JUDGE, REGEX) for _ in range(20)))
    assert [result.score for result in results] == [6.0] * 20


@pytest.mark.parametrize(
    ("pattern", "text", "in_a_thread"),
    [
        ("score: ([0-9]+)", "score: 6", False),
        ("score: ([0-9]+)", "score: 6 " + "x" * 4000, True),
        ("(?:(?:a?){0,999}(?:a?){0,999}Q|(6))", "6 " + "a" * 200, True),
    ],
)
async def test_a_search_that_may_be_long_is_beside_the_event_loop(
    pattern: str, text: str, in_a_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pattern is the caller's: one of a few characters may be a program of thousands of steps for each."""
    threads: list[Any] = []
    to_thread = asyncio.to_thread

    async def noting(*args: Any) -> Any:
        threads.append(args)
        return await to_thread(*args)

    monkeypatch.setattr(asyncio, "to_thread", noting)
    async with running_engine(completion(text)) as engine:
        result = await performed(engine, JUDGE, {**REGEX, "score": {"regex": pattern}})
    assert (result.score, bool(threads)) == (6.0, in_a_thread)


# ---- kept connections ------------------------------------------------------------------------------------------------


class ClosingEngine:
    """Answers the first request of a connection, and closes it at the next one, as an engine that has waited too long.

    Handwritten, because no server closes at exactly that moment.
    """

    def __init__(self, *, ends: bool = False) -> None:
        self.connections = 0
        self.answered = 0
        self._ends = ends
        self.server: asyncio.Server | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._read(reader)
            self.answered += 1
            choice = {"message": {"role": "assistant", "content": "score: 6"}, "finish_reason": "stop"}
            body = msgspec.json.encode({"choices": [choice]})
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
            writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
            await self._read(reader)
            if self._ends and self.server is not None:
                self.server.close()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(size)


async def _judged_twice(engine: ClosingEngine, *, keeps: bool = True) -> AttemptResult:
    engine.server = server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    params = msgspec.json.encode({"service": "judge-a", **REGEX})
    async with server, open_streams(connect_s=2.0) as http, asyncio.timeout(20):
        deadline = asyncio.get_running_loop().time() + 10
        call = EngineAttempt(EngineAddress(url, "openai", "m", keeps_connections=keeps), http, deadline)
        first = await perform(JUDGE, params, call)
        assert first.score == 6.0
        return await perform(JUDGE, params, call)


async def test_a_call_that_meets_the_end_of_a_kept_connection_is_sent_again() -> None:
    engine = ClosingEngine()
    result = await _judged_twice(engine)
    assert (result.status, result.score) == ("ok", 6.0)
    assert (engine.connections, engine.answered) == (2, 2)


async def test_an_engine_that_keeps_no_connections_has_one_for_each_call() -> None:
    engine = ClosingEngine(ends=True)  # a second request on a connection would end it
    result = await _judged_twice(engine, keeps=False)
    assert (result.score, engine.connections) == (6.0, 2)


async def test_the_end_of_an_engine_is_no_end_of_a_kept_connection() -> None:
    with pytest.raises(EngineGone, match="did not answer"):
        await _judged_twice(ClosingEngine(ends=True))


# ---- a real engine ---------------------------------------------------------------------------------------------------


async def test_a_real_engine_writes_json_of_the_schema(llamacpp: LlamaWorker) -> None:
    schema = {"type": "object", "properties": {"score": {"enum": [0, 1]}}, "required": ["score"],
              "additionalProperties": False}  # fmt: skip
    result = await performed(
        llamacpp.url, JUDGE, {"messages": ASK, "score": {"schema": schema}, "max_tokens": 200}, within_s=120
    )
    assert (result.status, result.evidence) == ("ok", "separate")
    assert result.score in (0.0, 1.0)
    assert result.usage["tokens"] > 0


async def test_a_real_engine_that_is_cut_is_no_verdict(llamacpp: LlamaWorker) -> None:
    params = {"messages": ASK, "score": {"regex": "(.)"}, "max_tokens": 1}
    result = await performed(llamacpp.url, JUDGE, params, within_s=120)
    assert (result.status, result.score) == ("upstream-failed", None)
    assert result.reason.startswith("the judgement was cut at 1 tokens")


async def test_a_real_engine_rejects_what_is_too_long_for_it(llamacpp: LlamaWorker) -> None:
    params = {"messages": [{"role": "user", "content": "word " * 20_000}], "score": {"regex": "(.)"}}
    result = await performed(llamacpp.url, JUDGE, params, within_s=120)
    assert (result.status, result.score) == ("refused", None)
    assert result.reason.startswith("the engine answered 400: ")
