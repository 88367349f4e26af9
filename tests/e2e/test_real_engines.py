"""A router process and real llama.cpp workers: affinity saves prefill, and a killed worker costs no client an error."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from typing import Any

import aiohttp
import pytest

from tests.e2e.replicas import metric
from tests.services.trajectory_router.engines.llamacpp import LlamaWorker, running_llamacpp
from tests.services.trajectory_router.engines.llamacpp_process import MODEL
from tests.services.trajectory_router.engines.routed import RoutedEngines, running_routed
from tests.services.trajectory_router.engines.waiting import until

FACTS = " ".join(f"Loom {number} weaves {number * 7} threads." for number in range(40))
"""About 400 tokens, which only these tests send."""
TRAJECTORIES = 6


class Client:
    """Calls of trajectories, and what came of them."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self.outcomes = Counter[str]()
        """`ok`; `broken`: after the first byte; the status or the error of what ended before it."""
        self.workers = Counter[str]()
        """Whole answers by worker."""

    async def chat(self, trajectory: str, *messages: str, **fields: Any) -> tuple[str, dict[str, Any]]:
        """Make one call. Return the worker and the answer."""
        roles = ("user", "assistant")
        said = [{"role": roles[number % 2], "content": text} for number, text in enumerate(messages)]
        body = {"model": MODEL, "messages": said, "temperature": 0, "ignore_eos": True, **fields}
        headers = {"x-trajectory-id": trajectory}
        async with self._http.post("/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            return response.headers["x-treadle-worker"], await response.json()

    async def call(self, trajectory: str, *, stream: bool) -> None:
        """Make one call of a few tokens, and count its outcome."""
        messages = [{"role": "user", "content": f"Count for {trajectory}: 1, 2, 3"}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 4, "stream": stream, "ignore_eos": True}
        first = False
        try:
            async with self._http.post(
                "/v1/chat/completions", json=body, headers={"x-trajectory-id": trajectory}
            ) as response:
                if response.status != 200:
                    self.outcomes[f"{response.status} {await response.text()}"] += 1
                    return
                data = b""
                async for part in response.content.iter_any():
                    first, data = True, data + part
                assert data.endswith(b"data: [DONE]\n\n") or not stream, data
                self.outcomes["ok"] += 1
                self.workers[response.headers["x-treadle-worker"]] += 1
        except aiohttp.ClientError as error:
            self.outcomes["broken" if first else repr(error)] += 1


async def test_affinity_saves_prefill(llamacpp_pair: tuple[LlamaWorker, LlamaWorker]) -> None:
    with running_routed(*(worker.url for worker in llamacpp_pair)) as routed:
        await until(routed.ready)
        async with aiohttp.ClientSession(routed.url) as http:
            client = Client(http)
            first, answer = await client.chat("a", FACTS, max_tokens=8)
            said = answer["choices"][0]["message"]["content"]
            turns = (FACTS, said, "How many threads does loom 7 weave?")
            again, cached = await client.chat("a", *turns, max_tokens=1)
            other, computed = await client.chat("b", *turns, max_tokens=1)
    assert again == first, "the trajectory stays on its worker"
    assert other != first, "another trajectory goes to the worker with less load"
    length = cached["usage"]["prompt_tokens"]
    assert length == computed["usage"]["prompt_tokens"] > 400
    assert cached["timings"]["prompt_n"] < length // 4, "the pinned worker computes the new turn alone"
    assert computed["timings"]["prompt_n"] > length // 2, "the other worker computes the history, too"
    assert cached["usage"]["prompt_tokens_details"]["cached_tokens"] == length - cached["timings"]["prompt_n"]


async def test_streamed_calls_of_a_trajectory_stay_on_their_worker(
    llamacpp_pair: tuple[LlamaWorker, LlamaWorker],
) -> None:
    """llama.cpp closes the connection of each streamed answer. That is no failure of the worker."""
    with running_routed(*(worker.url for worker in llamacpp_pair)) as routed:
        await until(routed.ready)
        async with aiohttp.ClientSession(routed.url) as http:
            client = Client(http)
            for _ in range(8):
                await client.call("a", stream=True)
        resent = metric(routed.service, "treadle_trajectory_router_resent_total")
    assert (client.outcomes, resent) == ({"ok": 8}, 0)
    assert len(client.workers) == 1


@pytest.mark.slow
async def test_a_killed_worker_costs_no_client_an_error_before_the_first_byte(
    llamacpp: LlamaWorker, exit_stack: ExitStack
) -> None:
    victim = exit_stack.enter_context(running_llamacpp())
    routed = exit_stack.enter_context(running_routed(llamacpp.url, victim.url))
    id_ = next(id_ for id_, worker in routed.workers().items() if worker["url"] == victim.url)
    await until(routed.ready)
    async with aiohttp.ClientSession(routed.url) as http:
        client, ended = Client(http), asyncio.Event()

        async def trajectory(name: str, *, stream: bool) -> None:
            while not ended.is_set():
                await client.call(name, stream=stream)

        running = [
            asyncio.create_task(trajectory(f"t{number}", stream=number % 2 == 0)) for number in range(TRAJECTORIES)
        ]
        try:
            await until(lambda: len(client.workers) == 2 and client.workers[id_] > 2)
            victim.kill()
            before = client.outcomes["ok"]
            await until(lambda: client.outcomes["ok"] >= before + TRAJECTORIES)

            exit_stack.enter_context(running_llamacpp(port=victim.port))
            await register(routed, victim)
            served = client.workers[id_]
            running += [asyncio.create_task(trajectory(f"new{number}", stream=number == 0)) for number in range(2)]
            await until(lambda: client.workers[id_] > served)
        finally:
            ended.set()
            async with asyncio.timeout(60):
                await asyncio.gather(*running)
    assert set(client.outcomes) <= {"ok", "broken"}, client.outcomes
    assert client.outcomes["broken"] <= 2, "the calls of both slots may break after their first byte"


async def register(routed: RoutedEngines, worker: LlamaWorker) -> None:
    """Register an engine without blocking the calls of this process."""
    await asyncio.to_thread(routed.register, worker.url)
