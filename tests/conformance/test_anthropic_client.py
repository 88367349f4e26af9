"""The published `anthropic` client, unmodified, against a router process and two real llama.cpp workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import pytest

from tests.services.trajectory_router.engines.llamacpp import CONTEXT, LlamaWorker
from tests.services.trajectory_router.engines.llamacpp_process import MODEL
from tests.services.trajectory_router.engines.routed import RoutedEngines, running_routed
from tests.services.trajectory_router.engines.waiting import until, until_idle

Pair = tuple[LlamaWorker, LlamaWorker]
MESSAGES: Any = [{"role": "user", "content": "Count: 1, 2, 3"}]
LONG = CONTEXT - 200


@pytest.fixture(scope="module")
def routed(llamacpp_pair: Pair) -> Iterator[RoutedEngines]:
    with running_routed(*(worker.url for worker in llamacpp_pair)) as running:
        yield running


@pytest.fixture
def client(routed: RoutedEngines) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=routed.url, api_key="-", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(routed: RoutedEngines) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=routed.url, api_key="-", max_retries=0) as client:
        yield client


def test_a_message(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=6)
    assert (answer.type, answer.role) == ("message", "assistant")
    assert answer.stop_reason in ("max_tokens", "end_turn")
    assert answer.usage.output_tokens <= 6


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES)
    answer = client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=1)
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


def test_a_streamed_message_arrives_in_parts(client: anthropic.Anthropic, llamacpp_pair: Pair) -> None:
    parts, computing = [], 0
    with client.messages.stream(
        model=MODEL, messages=MESSAGES, max_tokens=60, extra_body={"ignore_eos": True}
    ) as stream:
        for text in stream.text_stream:
            parts.append(text)
            if len(parts) == 1:
                computing = sum(worker.busy() for worker in llamacpp_pair)
        final = stream.get_final_message()
    assert computing == 1, "the first part has arrived before the last token is sampled"
    assert len(parts) > 10
    assert final.content[0].type == "text"
    assert final.content[0].text == "".join(parts)
    assert final.usage.output_tokens == 60


async def test_the_async_client(async_client: anthropic.AsyncAnthropic) -> None:
    messages = async_client.messages
    answer, counted = await asyncio.gather(
        messages.create(model=MODEL, messages=MESSAGES, max_tokens=4),
        messages.count_tokens(model=MODEL, messages=MESSAGES),
    )
    assert answer.role == "assistant"
    assert counted.input_tokens > 5
    events = [
        event.type async for event in await messages.create(model=MODEL, messages=MESSAGES, max_tokens=4, stream=True)
    ]
    assert (events[0], events[-1]) == ("message_start", "message_stop")


def test_an_engines_refusal_is_the_clients_exception(client: anthropic.Anthropic) -> None:
    long: Any = [{"role": "user", "content": "1 " * CONTEXT}]
    with pytest.raises(anthropic.BadRequestError, match="context size"):
        client.messages.create(model=MODEL, messages=long, max_tokens=1)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_disconnects_frees_its_slot(
    async_client: anthropic.AsyncAnthropic, llamacpp_pair: Pair, *, stream: bool
) -> None:
    create = async_client.messages.create
    asked: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": LONG, "extra_body": {"ignore_eos": True}}
    if stream:
        answer = await create(**asked, stream=True)
        await anext(aiter(answer))
        await answer.close()
    else:
        call = asyncio.create_task(create(**asked))
        await until(lambda: sum(worker.busy() for worker in llamacpp_pair), pause_s=0.2)
        call.cancel()
        await asyncio.wait([call])
    await until_idle(lambda: sum(worker.busy() for worker in llamacpp_pair))
    longest = max(slot.get("n_prompt_tokens", 0) for worker in llamacpp_pair for slot in worker.slots())
    assert longest < LONG // 2, "the call has not run to its end"
