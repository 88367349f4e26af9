"""Batches and residency of the engine, with weights and a model that the test controls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from services.gpu_manager.torch_server.engine import Engine, EngineLimits
from services.gpu_manager.torch_server.errors import InsufficientMemory, RequestRejected
from services.gpu_manager.torch_server.sequences import Result, TokenSequence

WAIT_S = 10.0


class Weights:
    def __init__(self) -> None:
        self.is_resident = True
        self.steps: list[str] = []
        self.has_memory = True

    def evict(self) -> None:
        self.steps.append("evict")
        self.is_resident = False

    def restore(self) -> None:
        if not self.has_memory:
            raise InsufficientMemory("out of memory")
        self.steps.append("restore")
        self.is_resident = True


class Doubling:
    """A model whose result is its first token twice. It computes when `gate` is set, and never while evicted."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.batches: list[list[int]] = []
        self.error: Exception | None = None

    def forward(self, batch: Sequence[TokenSequence]) -> list[Result]:
        self.begun.set()
        assert self.gate.wait(WAIT_S)
        assert self.weights.is_resident
        self.batches.append([len(each) for each in batch])
        if self.error is not None:
            raise self.error
        return [[2.0 * each.tokens[0]] for each in batch]


@asynccontextmanager
async def opened(batch_tokens: int = 100, queued_tokens: int = 1000) -> AsyncIterator[tuple[Engine, Doubling, Weights]]:
    weights = Weights()
    model = Doubling(weights)
    engine = Engine(weights, model.forward, EngineLimits(batch_tokens, queued_tokens))
    try:
        async with asyncio.timeout(WAIT_S):
            yield engine, model, weights
    finally:
        model.gate.set()
        await engine.close()


async def asked(engine: Engine, *sequences: TokenSequence) -> list[Result]:
    async with engine.accepted() as request:
        return await engine.results(request, sequences)


def of(first: int, length: int = 1) -> TokenSequence:
    return TokenSequence([first] * length)


async def begun(model: Doubling) -> None:
    assert await asyncio.to_thread(model.begun.wait, WAIT_S)
    await asyncio.sleep(0)


async def test_requests_that_wait_together_share_batches() -> None:
    async with opened(batch_tokens=8) as (engine, model, _):
        model.gate.clear()
        first = asyncio.create_task(asked(engine, of(1)))
        await begun(model)
        others = [asyncio.create_task(asked(engine, of(number, 2))) for number in range(2, 8)]
        await asyncio.sleep(0)
        model.gate.set()
        assert await first == [[2.0]]
        assert await asyncio.gather(*others) == [[[2.0 * number]] for number in range(2, 8)]
        assert model.batches == [[1], [2, 2, 2, 2], [2, 2]]


async def test_an_input_above_the_limit_of_a_batch_is_a_batch_of_its_own() -> None:
    async with opened(batch_tokens=8) as (engine, model, _):
        assert await asked(engine, of(1, 3), of(2, 50), of(3, 3)) == [[2.0], [4.0], [6.0]]
        assert model.batches == [[3], [50], [3]]


async def test_the_queue_is_bounded_and_names_a_time() -> None:
    async with opened(batch_tokens=8, queued_tokens=20) as (engine, model, _):
        model.gate.clear()
        first = asyncio.create_task(asked(engine, of(1)))
        await begun(model)
        waiting = asyncio.create_task(asked(engine, of(2, 15)))
        await asyncio.sleep(0)
        with pytest.raises(RequestRejected) as rejected:
            await asked(engine, of(3, 6))
        assert (rejected.value.status, rejected.value.code) == (503, "overloaded")
        assert rejected.value.retry_s is not None
        assert rejected.value.retry_s > 0
        fitting = asyncio.create_task(asked(engine, of(4, 5)))
        await asyncio.sleep(0)
        model.gate.set()
        assert list(await asyncio.gather(first, waiting, fitting)) == [[[2.0]], [[4.0]], [[8.0]]]
        assert await asked(engine, of(5, 500)) == [[10.0]]


async def test_a_cancelled_request_is_withdrawn() -> None:
    async with opened(queued_tokens=20) as (engine, model, _):
        model.gate.clear()
        first = asyncio.create_task(asked(engine, of(1)))
        await begun(model)
        left = asyncio.create_task(asked(engine, of(2, 20)))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        assert engine.running == 1
        third = asyncio.create_task(asked(engine, of(3, 20)))
        await asyncio.sleep(0)
        model.gate.set()
        assert list(await asyncio.gather(first, third)) == [[[2.0]], [[6.0]]]
        assert model.batches == [[1], [20]]


async def test_an_eviction_waits_for_nothing_and_is_rejected_while_a_request_runs() -> None:
    async with opened() as (engine, _, weights):
        async with engine.accepted():
            with pytest.raises(RequestRejected, match="1 requests run"):
                await engine.evict()
        await engine.evict()
        await engine.evict()
        assert engine.residency == "asleep1"
        with pytest.raises(RequestRejected) as rejected:
            await asked(engine, of(1))
        assert (rejected.value.status, rejected.value.code) == (409, "evicted")
        await engine.restore()
        await engine.restore()
        assert await asked(engine, of(1)) == [[2.0]]
        assert weights.steps == ["evict", "restore"]


async def test_an_aborted_request_ends_at_once_and_its_batch_ends_before_the_eviction() -> None:
    async with opened() as (engine, model, weights):
        model.gate.clear()
        running = asyncio.create_task(asked(engine, of(1)))
        await begun(model)
        waiting = asyncio.create_task(asked(engine, of(2)))
        await asyncio.sleep(0)
        engine.abort()
        for request in (running, waiting):
            with pytest.raises(RequestRejected) as rejected:
                await request
            assert (rejected.value.status, rejected.value.code) == (409, "aborted")
        evicting = asyncio.create_task(engine.evict())
        await asyncio.sleep(0.05)
        assert (evicting.done(), weights.steps) == (False, [])
        model.gate.set()
        await evicting
        assert (weights.steps, model.batches) == (["evict"], [[1]])


async def test_a_request_that_was_aborted_before_it_waited_is_rejected() -> None:
    async with opened() as (engine, _, _), engine.accepted() as request:
        engine.abort()
        with pytest.raises(RequestRejected, match="aborted"):
            await engine.results(request, [of(1)])


async def test_a_cancelled_eviction_still_ends() -> None:
    async with opened() as (engine, model, weights):
        model.gate.clear()
        running = asyncio.create_task(asked(engine, of(1)))
        await begun(model)
        engine.abort()
        await asyncio.gather(running, return_exceptions=True)
        evicting = asyncio.create_task(engine.evict())
        await asyncio.sleep(0.01)
        evicting.cancel()
        await asyncio.gather(evicting, return_exceptions=True)
        assert engine.residency == "evicting"
        restoring = asyncio.create_task(engine.restore())
        model.gate.set()
        await restoring
        assert (engine.residency, weights.steps) == ("resident", ["evict", "restore"])


async def test_a_restore_without_memory_leaves_the_model_evicted() -> None:
    async with opened() as (engine, _, weights):
        await engine.evict()
        weights.has_memory = False
        with pytest.raises(RequestRejected) as rejected:
            await engine.restore()
        assert (rejected.value.status, engine.residency) == (507, "asleep1")
        weights.has_memory = True
        await engine.restore()
        assert await asked(engine, of(4)) == [[8.0]]


async def test_a_batch_without_memory_fails_alone() -> None:
    async with opened() as (engine, model, _):
        model.error = InsufficientMemory("out of memory")
        with pytest.raises(RequestRejected) as rejected:
            await asked(engine, of(1), of(2))
        assert (rejected.value.status, rejected.value.code) == (507, "out_of_memory")
        model.error = None
        assert await asked(engine, of(3)) == [[6.0]]


async def test_a_failed_kernel_makes_the_engine_refuse_all_requests() -> None:
    async with opened() as (engine, model, _):
        model.error = RuntimeError("illegal address")
        for _ in range(2):
            with pytest.raises(RequestRejected, match="illegal address") as rejected:
                await asked(engine, of(1))
            assert (rejected.value.status, rejected.value.code) == (500, "broken")
        assert "illegal address" in engine.failure
        assert model.batches == [[1]]
