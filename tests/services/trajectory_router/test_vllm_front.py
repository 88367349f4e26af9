"""The test front against the facts about vLLM: its answers agree with its log. The router is not used here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from services.trajectory_router.detection import Detector
from shared.runtime.http_streams import open_streams
from tests.services.trajectory_router.engines.call_log import LoggedCall, VersionSpan
from tests.services.trajectory_router.engines.llamacpp import CONTEXT, SLOTS, LlamaWorker
from tests.services.trajectory_router.engines.prompts import BOS, TOOL
from tests.services.trajectory_router.engines.vllm_front import MODEL, VllmFront, running_front
from tests.services.trajectory_router.engines.waiting import until, until_idle

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RECORDED: dict[str, Any] = {
    "return_token_ids": True,
    "logprobs": True,
    "top_logprobs": 1,
    "return_weight_versions": True,
}
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Count: 1, 2, 3"}],
    "temperature": 1,
    "seed": 7,
    "max_tokens": 8,
}


@pytest.fixture
async def front(llamacpp: LlamaWorker) -> AsyncIterator[VllmFront]:
    async with running_front(llamacpp.url) as running:
        yield running


@pytest.fixture
async def http(front: VllmFront) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(front.url) as session:
        yield session


async def whole(http: aiohttp.ClientSession, path: str = CHAT, **body: Any) -> dict[str, Any]:
    async with http.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        return dict(await response.json())


async def events(http: aiohttp.ClientSession, path: str = CHAT, **body: Any) -> list[dict[str, Any]]:
    async with http.post(path, json={**body, "stream": True}) as response:
        assert response.status == 200, await response.text()
        *found, done, rest = (await response.read()).split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(event.removeprefix(b"data: ")) for event in found]


def choices(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice for event in found for choice in event["choices"]]


def joined(found: list[dict[str, Any]], name: str) -> list[int]:
    return [value for choice in choices(found) for value in choice[name]]


def logprobs(found: list[dict[str, Any]]) -> list[float]:
    return [one["logprob"] for choice in choices(found) for one in (choice["logprobs"] or {}).get("content", [])]


def without_eos(worker: LlamaWorker, call: LoggedCall) -> str:
    return worker.detokenize([id_ for id_ in call.output_ids if id_ not in (1, 106)])


@pytest.mark.parametrize("interval", [1, 3])
async def test_a_streams_ids_and_log_probabilities_are_those_of_the_log(
    front: VllmFront, http: aiohttp.ClientSession, llamacpp: LlamaWorker, interval: int
) -> None:
    front.stream_interval = interval
    found = await events(http, **ASKED, **RECORDED, stream_options={"include_usage": True})
    call = front.call(found[0]["id"])
    assert found[0]["prompt_token_ids"] == call.prompt_ids
    assert call.prompt_ids[0] == BOS
    assert not any("prompt_token_ids" in event for event in found[1:])
    deltas = [{**event, "choices": event["choices"]} for event in found[1:]]
    assert joined(deltas, "token_ids") == call.output_ids
    assert logprobs(deltas) == call.logprobs
    assert all(value <= 0 for value in call.logprobs)
    text = "".join(choice["delta"]["content"] for choice in choices(found))
    assert text == call.text == without_eos(llamacpp, call)
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["completion_tokens"] == len(call.output_ids) == len(call.logprobs)
    assert found[-1]["usage"]["prompt_tokens"] == len(call.prompt_ids)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_whole_answers_ids_are_those_of_the_log(
    front: VllmFront, http: aiohttp.ClientSession, llamacpp: LlamaWorker, path: str
) -> None:
    chat = path == CHAT
    asked = {**ASKED, "prompt": "1, 2, 3"} | RECORDED | ({} if chat else {"logprobs": 1})
    answer = await whole(http, path, **asked)
    call, (choice,) = front.call(answer["id"]), answer["choices"]
    assert choice["token_ids"] == call.output_ids
    assert (answer if chat else choice)["prompt_token_ids"] == call.prompt_ids
    assert (choice["message"]["content"] if chat else choice["text"]) == without_eos(llamacpp, call)
    got = choice["logprobs"]
    assert ([one["logprob"] for one in got["content"]] if chat else got["token_logprobs"]) == call.logprobs
    assert choice["weight_versions"] == [{"version": "default", "start": 0, "end": len(call.output_ids)}]
    assert choice["finish_reason"] == call.finish_reason
    assert not call.aborted


async def test_ids_in_are_the_prompt(front: VllmFront, http: aiohttp.ClientSession) -> None:
    found = await events(http, COMPLETIONS, prompt=[2, 236770, 236764], max_tokens=2, return_token_ids=True)
    call = front.call(found[0]["id"])
    assert call.prompt_ids == [2, 236770, 236764] == found[0]["choices"][0]["prompt_token_ids"]
    assert joined(found, "token_ids") == call.output_ids


async def test_fields_that_were_not_requested_are_absent(front: VllmFront, http: aiohttp.ClientSession) -> None:
    whole_answer, found = await whole(http, **ASKED), await events(http, **ASKED)
    for answer in (whole_answer, *found):
        names = {*answer, *answer["choices"][0]}
        assert not names & {"prompt_token_ids", "token_ids", "weight_versions"}
        assert answer["choices"][0]["logprobs"] is None
    assert not any("usage" in event for event in found)
    front.nulls = True
    assert (await whole(http, **ASKED))["prompt_token_ids"] is None
    assert (await events(http, **ASKED))[1]["choices"][0]["token_ids"] is None


async def test_a_version_that_changes_during_a_call_begins_a_span(
    front: VllmFront, http: aiohttp.ClientSession
) -> None:
    body = {**ASKED, **RECORDED, "max_tokens": 12, "stream": True}
    async with http.post(CHAT, json=body) as response:
        await response.content.readuntil(b'"token_ids":[')
        async with http.post("/update_weight_version", json={"new_version": "v2"}) as updated:
            assert updated.status == 200
        rest = await response.read()
    (call,) = front.log
    last = json.loads(rest.split(b"\n\n")[-3].removeprefix(b"data: "))
    first, second = last["choices"][0]["weight_versions"]
    assert [first["version"], second["version"]] == ["default", "v2"]
    assert (first["start"], first["end"], second["end"]) == (0, second["start"], len(call.output_ids))
    assert rest.count(b"weight_versions") == 1
    assert call.versions == [VersionSpan(**first), VersionSpan(**second)]


async def test_a_stop_string_is_not_in_the_text_and_its_ids_are_in_the_answer(
    front: VllmFront, http: aiohttp.ClientSession, llamacpp: LlamaWorker
) -> None:
    asked = {"prompt": "1 2 3 4 5 6 7", "temperature": 0, "max_tokens": 20, "stop": ["9 10"], "return_token_ids": True}
    found = await events(http, COMPLETIONS, **asked)
    call = front.call(found[0]["id"])
    assert choices(found)[-1]["finish_reason"] == "stop"
    assert choices(found)[-1]["stop_reason"] == "9 10"
    assert any(choice["token_ids"] and not choice["text"] for choice in choices(found)), "an empty delta has ids"
    assert joined(found, "token_ids") == call.output_ids
    assert call.text == "".join(choice["text"] for choice in choices(found)) == " 8 "
    assert without_eos(llamacpp, call) == " 8 9 10"


async def test_a_next_prompt_extends_a_plain_answer_with_its_tool_text(
    front: VllmFront, http: aiohttp.ClientSession
) -> None:
    answer = await whole(http, **{**ASKED, "temperature": 0}, tools=[TOOL])
    said = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
    messages = [*ASKED["messages"], said, {"role": "tool", "content": "ok"}]
    await whole(http, **{**ASKED, "messages": messages}, tools=[TOOL])
    first, second = front.log
    before = first.prompt_ids + first.output_ids
    assert second.prompt_ids[: len(before)] == before


async def test_a_required_tool_is_called_and_its_ids_come_without_text(
    front: VllmFront, http: aiohttp.ClientSession, llamacpp: LlamaWorker
) -> None:
    asked = {**ASKED, "tools": [TOOL], "tool_choice": "required", "max_tokens": 60, "return_token_ids": True}
    found = await events(http, **asked)
    call, got = front.call(found[0]["id"]), choices(found)
    assert joined(found[1:], "token_ids") == call.output_ids
    assert got[-1]["finish_reason"] == call.finish_reason == "tool_calls"
    (called,) = got[-1]["delta"]["tool_calls"]
    assert json.loads(called["function"]["arguments"]) == json.loads(without_eos(llamacpp, call))["arguments"]
    assert not any(choice["delta"].get("content") for choice in got)
    assert (await whole(http, **asked))["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "bash"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_disconnects_aborts_the_engines_call(
    front: VllmFront, llamacpp: LlamaWorker, stream: bool
) -> None:
    async with aiohttp.ClientSession(front.url) as client:
        body = {**ASKED, "max_tokens": 1500, "stream": stream, "seed": 3}
        call = asyncio.create_task(client.post(CHAT, json=body))
        await until(lambda: front.log and len(front.log[0].output_ids) > 3)
        if stream:
            (await call).close()
        call.cancel()
        await asyncio.wait([call])
    await until(lambda: not front.running)
    await until_idle(llamacpp.busy)
    (logged,) = front.log
    assert logged.aborted
    assert logged.finish_reason == "disconnect"
    assert 3 < len(logged.output_ids) == len(logged.logprobs) < 1500


async def test_an_abort_ends_a_call_with_what_was_sampled(front: VllmFront, http: aiohttp.ClientSession) -> None:
    body = {**ASKED, **RECORDED, "max_tokens": 1500, "stream": True}
    async with http.post(CHAT, json=body) as response:
        await response.content.readuntil(b'"token_ids":[')
        async with http.post("/abort_requests", json={}) as aborted:
            assert aborted.status == 200
        rest = await response.read()
    (call,) = front.log
    assert (call.finish_reason, call.aborted) == ("abort", True)
    assert b'"finish_reason":"abort"' in rest
    assert call.versions[-1].end == len(call.output_ids)


async def test_what_the_engine_refuses_is_refused(front: VllmFront, http: aiohttp.ClientSession) -> None:
    for stream in (True, False):
        async with http.post(COMPLETIONS, json={"prompt": [5] * (CONTEXT + 1), "stream": stream}) as response:
            assert response.status == 400
            assert "context" in (await response.json())["error"]["message"]


async def test_the_router_detects_vllm(front: VllmFront) -> None:
    async with open_streams(connect_s=2) as engines:
        found = await Detector(engines, limit_s=10).detect(front.url)
    assert found is not None
    assert (found.engine, found.models, found.kv_tokens) == ("vllm", [MODEL], SLOTS * CONTEXT)


async def test_the_log_is_served_as_json_lines(front: VllmFront, http: aiohttp.ClientSession) -> None:
    await whole(http, **ASKED)
    async with http.get("/log") as response:
        (line,) = (await response.read()).splitlines()
    assert json.loads(line)["output_ids"] == front.log[0].output_ids
