"""The published `openai` client, unmodified, against a router process and two real llama.cpp workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

from tests.services.trajectory_router.engines.llamacpp import CONTEXT, LlamaWorker
from tests.services.trajectory_router.engines.llamacpp_process import MODEL
from tests.services.trajectory_router.engines.routed import RoutedEngines, running_routed
from tests.services.trajectory_router.engines.waiting import until, until_idle

Pair = tuple[LlamaWorker, LlamaWorker]
MESSAGES: Any = [{"role": "user", "content": "Count: 1, 2, 3"}]
LONG = CONTEXT - 200
"""Output tokens of a call that would take half a minute."""


@pytest.fixture(scope="module")
def routed(llamacpp_pair: Pair) -> Iterator[RoutedEngines]:
    with running_routed(*(worker.url for worker in llamacpp_pair)) as running:
        yield running


@pytest.fixture
def client(routed: RoutedEngines) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{routed.url}/v1", api_key="-", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(routed: RoutedEngines) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{routed.url}/v1", api_key="-", max_retries=0) as client:
        yield client


def busy(workers: Pair) -> int:
    return sum(worker.busy() for worker in workers)


def longest(workers: Pair) -> int:
    """Tokens of the longest sequence in a slot."""
    return max(int(slot.get("n_prompt_tokens", 0)) for worker in workers for slot in worker.slots())


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_a_chat_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=6, extra_body={"ignore_eos": True}
    )
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6


def test_a_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="1 2 3 4 5 6", max_tokens=5, temperature=0, logprobs=1)
    assert answer.choices[0].text.startswith(" 7")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.choices[0].logprobs is not None


def test_a_streamed_chat_arrives_in_parts(client: openai.OpenAI, llamacpp_pair: Pair) -> None:
    parts, computing = [], 0
    asked = {"ignore_eos": True}
    with client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=60,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=asked,
    ) as stream:
        for chunk in stream:
            parts += [choice.delta.content for choice in chunk.choices if choice.delta.content]
            if len(parts) == 1 and not computing:
                computing = busy(llamacpp_pair)
            usage = chunk.usage
    assert computing == 1, "the first part has arrived before the last token is sampled"
    assert len(parts) > 10
    assert usage is not None
    assert usage.completion_tokens == 60


def test_a_streamed_completion(client: openai.OpenAI) -> None:
    stream = client.completions.create(model=MODEL, prompt="1 2 3 4 5 6", max_tokens=5, temperature=0, stream=True)
    texts = [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert len(texts) > 2
    assert "".join(texts).startswith(" 7")


async def test_the_async_client(async_client: openai.AsyncOpenAI) -> None:
    chat, completion = async_client.chat.completions, async_client.completions
    answer, text = await asyncio.gather(
        chat.create(model=MODEL, messages=MESSAGES, max_tokens=4),
        completion.create(model=MODEL, prompt="1 2 3 4 5 6", max_tokens=3, temperature=0),
    )
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert text.choices[0].text.startswith(" 7")
    stream = await chat.create(model=MODEL, messages=MESSAGES, max_tokens=12, stream=True, extra_body={"seed": 1})
    assert len([chunk async for chunk in stream if chunk.choices]) > 2


def test_an_engines_refusal_is_the_clients_exception(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="context size"):
        client.completions.create(model=MODEL, prompt="1 " * CONTEXT, max_tokens=1)
    with pytest.raises(openai.NotFoundError):
        client.images.generate(prompt="a loom")


def test_calls_of_a_trajectory_stay_on_one_worker(client: openai.OpenAI, routed: RoutedEngines) -> None:
    workers: dict[str, set[str]] = {"a": set(), "b": set()}
    for name in "abab":
        answer = client.with_options(default_headers={"x-trajectory-id": name}).chat.completions.with_raw_response
        workers[name].add(
            answer.create(model=MODEL, messages=MESSAGES, max_tokens=1).headers["x-treadle-worker"],
        )
    assert [len(seen) for seen in workers.values()] == [1, 1]
    assert workers["a"] | workers["b"] == set(routed.workers())


def test_a_response_whole_and_streamed(client: openai.OpenAI) -> None:
    """Whole, it is assembled from the stream of an engine that aborts streamed calls only."""
    asked: Any = {"model": MODEL, "input": "Count: 1, 2, 3", "max_output_tokens": 6, "temperature": 0}
    answer = client.responses.create(**asked)
    assert (answer.object, answer.model) == ("response", MODEL)
    assert answer.usage is not None
    assert 0 < answer.usage.output_tokens <= 6
    events = list(client.responses.create(**asked, stream=True))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert answer.output_text == events[-1].response.output_text


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_disconnects_frees_its_slot(
    async_client: openai.AsyncOpenAI, llamacpp_pair: Pair, stream: bool
) -> None:
    create = async_client.chat.completions.create
    asked: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": LONG, "extra_body": {"ignore_eos": True}}
    if stream:
        answer = await create(**asked, stream=True)
        await anext(aiter(answer))
        await answer.close()
    else:
        call = asyncio.create_task(create(**asked))
        await until(lambda: busy(llamacpp_pair), pause_s=0.2)
        call.cancel()
        await asyncio.wait([call])
    await until_idle(lambda: busy(llamacpp_pair))
    assert longest(llamacpp_pair) < LONG // 2, "the call has not run to its end"
