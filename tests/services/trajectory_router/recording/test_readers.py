"""Readers of engines: ids that they collect, and what clients get.

The answers here are written by hand after the engines' own contracts. Each case has the answer of a recorded call and
the answer that the client gets, so a field that is not removed, or removed in excess, is found.
"""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import Any

import pytest

from services.trajectory_router.recording import llamacpp
from services.trajectory_router.recording.formats import reader_of
from services.trajectory_router.recording.reader import Fields, Sampled, TokenReader
from shared.runtime.http_streams import open_streams
from shared.tokens.calls import VersionSpan

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
ABSENT: Any = None
"""The client gets no such event."""


def reader(engine: str, route: str = CHAT, **fields: Any) -> TokenReader:
    found = reader_of(engine, route, {"model": "m", **fields})
    assert not isinstance(found, str), found
    return found


async def read(reader: TokenReader, *events: tuple[Fields, Fields | None]) -> Sampled:
    """Read events, each beside what the client gets."""
    for event, expected in events:
        before, taken = deepcopy(event), deepcopy(event)
        change = reader.take(taken)
        if expected is None:
            assert change == "dropped"
            continue
        assert taken == expected
        assert change == ("kept" if expected == before else "changed")
    async with open_streams(connect_s=1.0) as engines:
        return await reader.sampled(engines, "http://127.0.0.1:9")


def entry(token: str, logprob: float, **more: Any) -> Fields:
    return {"token": token, "logprob": logprob, "bytes": [1], "top_logprobs": [], **more}


# ---- vLLM ------------------------------------------------------------------------------------------------------------


def vllm_choice(**more: Any) -> Fields:
    return {"index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop", **more}


VLLM_SPANS = [{"version": "v1", "start": 0, "end": 1}, {"version": "v2", "start": 1, "end": 2}]


async def test_vllm_whole() -> None:
    one = reader("vllm", messages=MESSAGES)
    body, headers = one.request()
    assert body == {
        "model": "m",
        "messages": MESSAGES,
        "return_token_ids": True,
        "return_weight_versions": True,
        "logprobs": True,
        "top_logprobs": 0,
    }
    assert not headers
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    sampled = await read(
        one,
        (
            {
                "prompt_token_ids": [1, 2, 3],
                "usage": usage,
                "choices": [
                    vllm_choice(
                        token_ids=[4, 5],
                        logprobs={"content": [entry("a", -0.5), entry("b", -0.25)]},
                        weight_versions=VLLM_SPANS,
                    )
                ],
            },
            {"usage": usage, "choices": [vllm_choice(logprobs=None)]},
        ),
    )
    assert sampled.prompt == [1, 2, 3]
    (choice,) = sampled.choices.values()
    assert (choice.ids, choice.logprobs, choice.finish_reason) == ([4, 5], [-0.5, -0.25], "stop")
    assert choice.versions == (VersionSpan("v1", 0, 1), VersionSpan("v2", 1, 2))
    assert (sampled.completion_tokens, sampled.error) == (2, "")


async def test_vllm_leaves_what_the_client_has_requested() -> None:
    one = reader("vllm", return_token_ids=True, logprobs=True, top_logprobs=3, return_weight_versions=True)
    assert one.request()[0]["top_logprobs"] == 3
    answer = {
        "prompt_token_ids": [1],
        "choices": [
            vllm_choice(token_ids=[4], logprobs={"content": [entry("a", -0.5)]}, weight_versions=VLLM_SPANS[:1])
        ],
    }
    sampled = await read(one, (answer, answer))
    assert (sampled.prompt, sampled.choices[0].ids) == ([1], [4])


async def test_vllm_stream() -> None:
    """An empty delta can carry ids. The event of usage is ours."""
    one = reader("vllm", stream=True)
    assert one.request()[0]["stream_options"] == {"include_usage": True}

    def delta(text: str | None, ids: list[int] | None, **more: Any) -> tuple[Fields, Fields]:
        logprobs = None if ids is None else {"content": [entry("x", -float(each)) for each in ids]}
        content: Fields = {"index": 0, "delta": {} if text is None else {"content": text}, **more}
        sent = {"choices": [{**content, "logprobs": logprobs, **({} if ids is None else {"token_ids": ids})}]}
        return sent, {"choices": [{**content, "logprobs": None}]}

    first, plain = delta("", None)
    sampled = await read(
        one,
        ({**first, "prompt_token_ids": [1, 2]}, plain),
        delta("a", [4]),
        delta(None, [5]),
        delta("b", [6, 7], finish_reason="tool_calls"),
        ({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 4}}, ABSENT),
    )
    assert sampled.prompt == [1, 2]
    assert sampled.choices[0].ids == [4, 5, 6, 7]
    assert sampled.choices[0].logprobs == [-4.0, -5.0, -6.0, -7.0]
    assert (sampled.choices[0].finish_reason, sampled.completion_tokens) == ("tool_calls", 4)


async def test_usage_that_the_client_has_requested_passes() -> None:
    one = reader("vllm", stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert one.request()[0]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    usage = {"choices": [], "usage": {"completion_tokens": 4}}
    await read(one, (usage, usage))


async def test_vllm_completions_have_the_prompt_in_each_choice() -> None:
    one = reader("vllm", "/v1/completions", prompt="hi")
    assert one.request()[0]["logprobs"] == 1
    choice = {"index": 0, "text": "ab", "finish_reason": "length"}
    logprobs = {"token_logprobs": [-0.5, -0.25], "tokens": ["a", "b"]}
    sampled = await read(
        one,
        (
            {"choices": [{**choice, "token_ids": [4, 5], "prompt_token_ids": [1], "logprobs": logprobs}]},
            {"choices": [{**choice, "logprobs": None}]},
        ),
    )
    assert (sampled.prompt, sampled.choices[0].ids, sampled.choices[0].logprobs) == ([1], [4, 5], [-0.5, -0.25])


async def test_vllm_generate_takes_and_gives_ids() -> None:
    one = reader("vllm", "/inference/v1/generate", token_ids=[1, 2], sampling_params={"max_tokens": 2})
    assert one.request()[0]["sampling_params"] == {"max_tokens": 2, "logprobs": 1}
    choice = {"index": 0, "token_ids": [4, 5], "finish_reason": "stop"}
    content = [{"token_id": 4, "logprob": -0.5}, {"token_id": 5, "logprob": -0.25}]
    sampled = await read(
        one,
        ({"choices": [{**choice, "logprobs": {"content": content}}]}, {"choices": [{**choice, "logprobs": None}]}),
    )
    assert (sampled.prompt, sampled.choices[0].ids, sampled.choices[0].logprobs) == ([1, 2], [4, 5], [-0.5, -0.25])


async def test_a_prompt_of_another_length_than_the_engine_counts_is_none() -> None:
    one = reader("vllm")
    sampled = await read(
        one,
        (
            {"prompt_token_ids": [1], "usage": {"prompt_tokens": 2}, "choices": [vllm_choice()]},
            {"usage": {"prompt_tokens": 2}, "choices": [vllm_choice()]},
        ),
    )
    assert sampled.prompt is None
    assert "2 tokens" in sampled.error


# ---- SGLang ----------------------------------------------------------------------------------------------------------


async def test_sglang_whole() -> None:
    one = reader("sglang", messages=MESSAGES)
    body, headers = one.request()
    assert (body["return_token_ids"], body["logprobs"], list(headers)) == (True, True, [])
    choice = {"index": 0, "message": {"content": "ab"}, "finish_reason": "stop"}
    logprobs = {"content": [entry("a", -0.5), entry("b", -0.25)]}
    metadata = {"weight_version": "7"}
    sampled = await read(
        one,
        (
            {
                "choices": [{**choice, "logprobs": logprobs, "response_token_ids": [4, 5], "prompt_token_ids": [1, 2]}],
                "metadata": metadata,
            },
            {"choices": [{**choice, "logprobs": None}], "metadata": metadata},
        ),
    )
    assert (sampled.prompt, sampled.choices[0].ids, sampled.choices[0].logprobs) == ([1, 2], [4, 5], [-0.5, -0.25])
    assert sampled.choices[0].versions == (VersionSpan("7", 0, 2),)


async def test_sglang_stream_has_ids_in_one_event_before_its_end() -> None:
    one = reader("sglang", stream=True)
    body, headers = one.request()
    assert "return_token_ids" not in body, "a stream refuses it with 400"
    assert dict(headers) == {b"x-sglext-return-input-ids": b"1", b"x-sglext-return-output-ids": b"1"}

    def delta(text: str, logprob: float, **more: Any) -> tuple[Fields, Fields]:
        choice: Fields = {"index": 0, "delta": {"content": text}, **more}
        return (
            {"choices": [{**choice, "logprobs": {"content": [entry(text, logprob)]}}]},
            {"choices": [{**choice, "logprobs": None}]},
        )

    sampled = await read(
        one,
        delta("a", -0.5),
        delta("b", -0.25, finish_reason="stop"),
        ({"choices": [], "sglext": {"input_ids": [1, 2], "output_ids": [[4, 5]]}}, ABSENT),
        ({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 2}}, ABSENT),
    )
    assert (sampled.prompt, sampled.choices[0].ids, sampled.choices[0].logprobs) == ([1, 2], [4, 5], [-0.5, -0.25])


def generated(ids: list[int], total: int, logprobs: list[int] | None = None, **meta: Any) -> tuple[Fields, Fields]:
    """An event of `/generate`, and what a client gets that has requested no log-probability."""
    plain = {"completion_tokens": total, "finish_reason": None, **meta}
    entries = [[-float(one), one, None] for one in logprobs or ids]
    return (
        {
            "text": "x",
            "output_ids": ids,
            "prompt_token_ids": [1],
            "meta_info": {**plain, "output_token_logprobs": entries, "input_token_logprobs": []},
        },
        {"text": "x", "output_ids": ids, "meta_info": plain},
    )


@pytest.mark.parametrize("cumulative", [True, False])
async def test_sglang_generate_streams_cumulative_events_or_increments(*, cumulative: bool) -> None:
    one = reader("sglang", "/generate", text="hi", stream=True)
    body, _ = one.request()
    assert (body["return_logprob"], body["logprob_start_len"], body["return_prompt_token_ids"]) == (True, -1, True)
    end: Fields = {"finish_reason": {"type": "stop"}, "weight_versions": VLLM_SPANS}
    parts = [[4], [4, 5], [4, 5, 6]] if cumulative else [[4], [5], [6]]
    sampled = await read(
        one,
        generated(parts[0], 1),
        generated(parts[1], 2),
        generated(parts[2], 3, **end),
    )
    assert sampled.prompt == [1]
    assert (sampled.choices[0].ids, sampled.choices[0].logprobs) == ([4, 5, 6], [-4.0, -5.0, -6.0])
    assert sampled.choices[0].versions == (VersionSpan("v1", 0, 1), VersionSpan("v2", 1, 2))


async def test_the_event_of_an_abort_repeats_the_last_token() -> None:
    one = reader("sglang", "/generate", input_ids=[1], stream=True)
    one.request()
    sampled = await read(one, generated([4], 1), generated([5], 2), generated([5], 2, finish_reason={"type": "abort"}))
    assert (sampled.choices[0].ids, sampled.choices[0].finish_reason) == ([4, 5], "abort")


# ---- llama.cpp -------------------------------------------------------------------------------------------------------


async def test_llamacpp_has_ids_in_its_logprobs() -> None:
    one = reader("llamacpp", messages=MESSAGES, stream=True)
    body, _ = one.request()
    assert (body["logprobs"], body["top_logprobs"]) == (True, 1)

    def delta(text: str, id_: int, **more: Any) -> tuple[Fields, Fields]:
        choice: Fields = {"index": 0, "delta": {"content": text}, **more}
        content = [{"id": id_, "token": text, "logprob": -0.5, "top_logprobs": [{"id": 1}]}]
        return {"choices": [{**choice, "logprobs": {"content": content}}]}, {"choices": [choice]}

    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    sampled = await read(
        one, delta("a", 4), delta("b", 5), (end, end), ({"choices": [], "usage": {"completion_tokens": 2}}, ABSENT)
    )
    assert (sampled.choices[0].ids, sampled.choices[0].logprobs) == ([4, 5], [-0.5, -0.5])
    assert sampled.prompt is None, "nothing answers there"


async def test_llamacpp_gives_a_client_no_more_alternatives_than_it_has_requested() -> None:
    one = reader("llamacpp", messages=MESSAGES, logprobs=True)
    one.request()
    content = [{"id": 4, "token": "a", "logprob": -0.5, "top_logprobs": [{"id": 1}]}]
    kept = [{**content[0], "top_logprobs": []}]
    await read(
        one,
        (
            {"choices": [{"index": 0, "logprobs": {"content": content}}]},
            {"choices": [{"index": 0, "logprobs": {"content": kept}}]},
        ),
    )


# ---- others ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "route", "fields"),
    [
        ("vllm", "/v1/messages", {}),
        ("vllm", "/v1/responses", {}),
        ("sglang", "/v1/completions", {}),
        ("sglang", "/generate", {"text": ["a", "b"]}),
        ("sglang", "/generate", {"input_ids": [[1], [2]]}),
        ("llamacpp", CHAT, {"stream": True, "tools": [{}]}),
        ("openai", CHAT, {}),
    ],
)
def test_calls_without_ids_have_a_reason(engine: str, route: str, fields: Fields) -> None:
    assert isinstance(reader_of(engine, route, fields), str)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
async def test_an_error_in_a_stream_passes_and_is_noted(engine: str) -> None:
    one = reader(engine, stream=True)
    error = {"error": {"message": "out of memory"}}
    assert (await read(one, (error, error))).error


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
@pytest.mark.parametrize(
    "event",
    [
        {"choices": None},
        {"choices": [None, 1, {"index": "x", "logprobs": 3, "token_ids": ["a"]}]},
        {"choices": [{"logprobs": {"content": [{"logprob": None, "id": None}, {}]}}], "usage": 3},
        {"prompt_token_ids": "x", "sglext": [1], "metadata": 7},
    ],
)
async def test_answers_of_another_form_are_no_error_of_ours(engine: str, event: Fields) -> None:
    one = reader(engine, stream=True)
    one.take(deepcopy(event))
    async with open_streams(connect_s=1.0) as engines:
        assert not any(choice.ids for choice in (await one.sampled(engines, "http://127.0.0.1:9")).choices.values())


@pytest.mark.parametrize("answer", ["none", "endless", "deep"])
async def test_a_prompt_whose_ids_do_not_come_is_recorded_without_them(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp is asked for them after the answer; the record waits for that."""
    monkeypatch.setattr(llamacpp, "ASKED_S", 0.1 if answer == "none" else 3600.0)
    monkeypatch.setattr(llamacpp, "MOST_BYTES", 1 << 20)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            if answer != "none":
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            if answer == "deep":
                writer.write(b"[" * 200_000)
            while answer == "endless":
                writer.write(bytes(1 << 16))
                await writer.drain()
            if answer == "none":
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(20):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with open_streams(connect_s=1.0) as engines:
            one = reader_of("llamacpp", "/v1/completions", {"model": "m", "prompt": "x"})
            assert not isinstance(one, str)
            assert (await one.sampled(engines, url)).prompt is None
        await ended.wait()
