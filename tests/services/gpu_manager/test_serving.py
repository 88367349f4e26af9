"""Execution of decisions about engines, and actions on them, with written backends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest
from aiohttp import web

from services.gpu_manager.backends.protocol import (
    Capabilities,
    EngineError,
    Footprint,
    Level,
    OutOfMemory,
    Residency,
    WrongAnswer,
)
from services.gpu_manager.described_memory import DescribedMemory
from services.gpu_manager.device_checks import check_memory
from services.gpu_manager.devices import GIB, GpuDevice
from services.gpu_manager.engine_failures import abort_requests
from services.gpu_manager.engine_use import NotServed
from services.gpu_manager.executor import LONGEST_PAUSE_S, MOST_PAUSED, GpuExecutor, failed_call
from services.gpu_manager.kernel_actions import KernelActions
from services.gpu_manager.kinds import GPUS
from services.gpu_manager.serving import Serving
from services.gpu_manager.specs import given_engines, spec_of
from shared.messages.grants import Granted
from shared.model_services.entries import ServiceEntry, read_entries
from shared.node.artifacts import NoArtifacts
from shared.policy.model.chunks import Chunk
from shared.policy.model.results import AttemptResult
from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import (
    Admit,
    InstanceId,
    NodeMemory,
)
from shared.policy.serving.node_serving import NodeServing
from shared.runtime.clock import SYSTEM_CLOCK
from shared.runtime.http_streams import open_streams
from tests.services.gpu_manager.engines import running_engine
from tests.shared.bus.soon import soon

ENTRY = {
    "backend": "process", "model": "m", "command": ["x", "{port}"], "memory_gb": {"awake": 16},
    "canary": {"prompt": "2+2=", "expect": "4"}, "min_residency_s": 0,
}  # fmt: skip


@dataclass
class WrittenBackend:
    """A backend whose steps a test lets fail. It counts itself among those awake."""

    name: str
    awake: set[str]
    url: str = ""
    fails: dict[str, Exception] = field(default_factory=dict)
    slow_s: dict[str, float] = field(default_factory=dict)
    """Step -> seconds that it takes."""
    steps: Counter[str] = field(default_factory=Counter)
    died: asyncio.Event = field(default_factory=asyncio.Event)
    flags = Capabilities(("cold",), False, False, False, False)

    async def _step(self, step: str) -> None:
        self.steps[step] += 1
        await asyncio.sleep(self.slow_s.get(step, 0.0))
        if step in self.fails:
            raise self.fails[step]

    async def prepare(self) -> None:
        await self._step("prepare")
        assert not self.awake, f"{self.awake} have the memory"
        self.awake.add(self.name)

    async def restore(self) -> None:
        await self.prepare()

    async def evict(self, level: Level) -> None:
        await self.stop()

    async def residency(self) -> Residency:
        return "resident" if self.name in self.awake else "cold"

    async def footprint(self) -> Footprint:
        return Footprint(None, None)

    async def canary(self) -> None:
        await self._step("canary")

    async def abort(self) -> None:
        await self._step("abort")

    async def stop(self) -> None:
        await self._step("stop")
        self.awake.discard(self.name)

    async def ended(self) -> str:
        await self.died.wait()
        self.awake.discard(self.name)
        return "it was killed"


class SleepingBackend(WrittenBackend):
    """A written backend of an engine that sleeps at level 1."""

    flags = Capabilities(("asleep1", "cold"), False, False, False, False)

    async def restore(self) -> None:
        await self._step("restore")
        self.awake.add(self.name)

    async def evict(self, level: Level) -> None:
        assert level == "asleep1"
        await self._step("evict")
        self.awake.discard(self.name)


class Unreadable(WrittenBackend):
    """Its state cannot be read by a bug of ours."""

    async def residency(self) -> Residency:
        raise LookupError("a bug")


class Unwatched(WrittenBackend):
    """Its end cannot be read by a bug of ours."""

    async def ended(self) -> str:
        await self.died.wait()
        raise LookupError("a bug")


class Memory(DescribedMemory):
    """Devices whose memory in use a test sets."""

    used = 0

    def used_bytes(self, number: int) -> int | None:
        return self.used


class Node:
    """One described GPU that holds one of the services `a` and `b`."""

    def __init__(self, url: str = "", first_probe_s: float = 60.0) -> None:
        self.backends: dict[str, WrittenBackend] = {}
        self.awake: set[str] = set()
        self.url = url
        self.memory = Memory((GpuDevice(0, 24.0, "described", False),))
        evict_s: dict[Level, float] = {"cold": 60.0, "asleep1": 0.0, "asleep2": 60.0}  # engines sleep where they can
        config = ServingConfig(max_wait_s=1.0, first_probe_s=first_probe_s, evict_s=evict_s)
        self.machine = NodeServing(NodeMemory((24.0,)), config)
        self.serving = Serving(self.machine, self._backend, self.memory, SYSTEM_CLOCK)
        for name in "ab":
            entry = read_entries(msgspec.json.encode({name: ENTRY}))[name]
            self.backends[name] = WrittenBackend(name, self.awake, url)
            self.serving.set_service(name, entry, spec_of(name, entry))

    def _backend(self, instance: InstanceId, _: ServiceEntry) -> WrittenBackend:
        if (error := self.backends[instance.service].fails.get("make")) is not None:
            raise error
        return self.backends[instance.service]

    def state(self, name: str) -> str:
        return next((view.state for view in self.machine.view() if view.instance.service == name), "")

    @asynccontextmanager
    async def using(self, holder: str, name: str, within_s: float = 5.0) -> AsyncIterator[None]:
        deadline = SYSTEM_CLOCK.monotonic() + within_s
        async with self.serving.using(holder, InstanceId(name, Chunk(0, 1)), deadline) as use:
            use.ok = True
            yield


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    async with asyncio.timeout(20):
        yield node
        await node.serving.stop(5.0)
    assert not node.awake


async def test_an_engine_is_loaded_checked_used_and_kept(node: Node) -> None:
    async with node.using("h1", "a"):
        assert node.awake == {"a"}
    async with node.using("h2", "a"):
        pass
    assert node.backends["a"].steps == {"prepare": 1, "canary": 1}
    assert node.state("a") == "resident"


async def test_another_service_evicts_it_after_its_holders(node: Node) -> None:
    async with node.using("h1", "a"):
        waiting = asyncio.create_task(_use(node, "h2", "b"))
        await asyncio.sleep(0.05)
        assert node.awake == {"a"}, "nothing is evicted from under its holder"
    await waiting
    assert node.awake == {"b"}
    assert node.backends["a"].steps["stop"] == 1


async def test_a_holder_that_waits_too_long_is_refused_and_one_that_goes_is_forgotten(node: Node) -> None:
    async with node.using("h1", "a"):
        with pytest.raises(NotServed) as refused:
            await _use(node, "h2", "b", within_s=0.1)
        assert refused.value.retry_in_s is not None
        gone = asyncio.create_task(_use(node, "h3", "b"))
        await asyncio.sleep(0.05)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
    await asyncio.sleep(0.05)
    assert node.backends["b"].steps == {}, "nobody waits for it any more"


@pytest.mark.parametrize("decision", ["admitted", "refused"])
async def test_a_holder_may_be_cancelled_in_the_turn_of_the_decision(node: Node, decision: str) -> None:
    node.backends["a"].slow_s["prepare"] = 0.05
    waiting = asyncio.create_task(_held(node, "h1", "a"))
    await asyncio.sleep(0.01)
    waiting.cancel()  # it notices at its next turn
    holding = node.serving._holders["h1"]
    if decision == "admitted":
        node.serving._execute(Admit("h1", InstanceId("a", Chunk(0, 1))))
    else:
        node.serving.remove_service("a")
        assert holding.refused.done()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not node.serving._holders
    async with node.using("h2", "b"):
        assert node.awake == {"b"}


async def _held(node: Node, holder: str, name: str) -> None:
    async with node.using(holder, name):
        await asyncio.sleep(3600)


@pytest.mark.parametrize("error", [OutOfMemory("CUDA out of memory"), EngineError("it did not start")])
async def test_an_engine_that_cannot_be_loaded_is_quarantined_with_its_reason(node: Node, error: EngineError) -> None:
    node.backends["a"].fails["prepare"] = error
    with pytest.raises(NotServed, match=error.reason) as refused:
        await _use(node, "h1", "a")
    assert refused.value.retry_in_s
    await _use(node, "h2", "b")
    assert node.state("a") == "quarantined"


async def test_a_wrong_canary_admits_nobody(node: Node) -> None:
    node.backends["a"].fails["canary"] = WrongAnswer("it says !!!!")
    with pytest.raises(NotServed, match="!!!!"):
        await _use(node, "h1", "a")
    assert node.backends["a"].steps["canary"] == 2, "it is loaded once more"
    await _use(node, "h2", "b")
    assert node.state("a") == "quarantined"


async def test_memory_in_use_is_measured_before_a_load(node: Node) -> None:
    node.memory.used = 12 * GIB
    with pytest.raises(NotServed, match=r"GPU 0 has 24.0 GB, 12.0 GB are in use, and a needs 16.0 GB"):
        await _use(node, "h1", "a")
    assert node.backends["a"].steps["prepare"] == 0
    node.memory.used = 8 * GIB
    await _use(node, "h2", "b")


async def test_memory_in_use_is_measured_before_a_restore(node: Node) -> None:
    """The memory that the sleeping engine itself has does not count."""
    sleeper = node.backends["a"] = SleepingBackend("a", node.awake)
    fields = {**ENTRY, "backend": "vllm", "memory_gb": {"awake": 16, "asleep": 2}}
    entry = read_entries(msgspec.json.encode({"a": fields}))["a"]
    node.serving.set_service("a", entry, spec_of("a", entry))
    await _use(node, "h1", "a")
    await _use(node, "h2", "b")
    assert (sleeper.steps["evict"], sleeper.steps["stop"]) == (1, 0), "it sleeps at level 1"
    node.memory.used = 10 * GIB
    await _use(node, "h3", "a")
    assert sleeper.steps["restore"] == 1, "2 of the 10 GB are its own"
    node.memory.used = 0
    await _use(node, "h4", "b")
    node.memory.used = 14 * GIB
    with pytest.raises(NotServed, match=r"GPU 0 has 24.0 GB, 12.0 GB are in use, and a needs 16.0 GB"):
        await _use(node, "h5", "a")
    assert (sleeper.steps["restore"], sleeper.steps["prepare"]) == (1, 1), "it was not started into memory in use"


async def test_the_memory_of_its_degree_is_measured() -> None:
    devices = Memory(tuple(GpuDevice(number, 24.0, "described", False) for number in range(2)))
    devices.used = 12 * GIB
    memory = {"awake": {"1": 16, "2": 10}, "asleep": {"1": 6, "2": 0}}
    entry = read_entries(msgspec.json.encode({"a": {**ENTRY, "degrees": [1, 2], "memory_gb": memory}}))["a"]
    await check_memory(devices, InstanceId("a", Chunk(0, 2)), entry, entry.asleep_gb(2))
    await check_memory(devices, InstanceId("a", Chunk(0, 1)), entry, entry.asleep_gb(1))
    with pytest.raises(OutOfMemory, match=r"a needs 16.0 GB"):
        await check_memory(devices, InstanceId("a", Chunk(0, 1)), entry, 0.0)


def test_a_specification_has_the_memory_of_each_degree() -> None:
    fields = {**ENTRY, "backend": "vllm", "degrees": [1, 2]}
    split = fields | {"memory_gb": {"awake": {"1": 60, "2": 32}, "asleep": 2}}
    entries = read_entries(msgspec.json.encode({"split": split, "one": fields}))
    one, two = (spec_of("split", entries["split"]).of_degree(degree) for degree in (1, 2))
    assert (one.awake_gb, two.awake_gb) == (60, 32)
    assert (one.asleep_gb, two.asleep_gb) == ({"asleep1": 2, "asleep2": 2},) * 2
    assert (one.host_gb, two.host_gb) == ({"asleep1": 60}, {"asleep1": 64})
    spec = spec_of("one", entries["one"])
    assert [spec.of_degree(degree).host_gb for degree in (1, 2)] == [{"asleep1": 16}, {"asleep1": 32}]
    assert [spec.gb(degree) for degree in (1, 2)] == [16, 16]


def test_a_command_by_degree_is_a_part_of_the_revision() -> None:
    """Its degrees are whole numbers, which are no names of a JSON object."""
    made = {}
    for name in ("x", "y"):
        fields = {**ENTRY, "degrees": [1, 2], "command": {"1": ["x", "{port}"], "2": [name, "{port}"]}}
        made[name] = spec_of("a", read_entries(msgspec.json.encode({"a": fields}))["a"]).revision
    assert made["x"] != made["y"]


def test_another_expected_time_of_loads_starts_no_engine_again() -> None:
    specs = [
        spec_of("a", read_entries(msgspec.json.encode({"a": {**ENTRY, **more}}))["a"]) for more in ({}, {"load_s": 240})
    ]
    assert [one.load_s for one in specs] == [60.0, 240.0]
    assert specs[0].same_engine(specs[1])


@pytest.mark.parametrize("step", ["make", "prepare", "canary", "stop"])
async def test_an_unexpected_error_of_a_step_fails_its_engine_alone(step: str) -> None:
    node = Node()
    node.backends["a"].fails[step] = LookupError("a bug")
    if step == "stop":
        await _use(node, "h1", "a")
        with pytest.raises(NotServed):
            await _use(node, "h2", "b")
        node.backends["a"].fails.clear()
    else:
        with pytest.raises(NotServed, match="internal error: LookupError"):
            await _use(node, "h1", "a")
        await _use(node, "h2", "b")
    assert not node.serving._failed.is_set()
    assert node.state("a") == "quarantined"
    assert any("internal error: LookupError" in view.why for view in node.machine.view())
    await node.serving.stop(5.0)


async def test_an_unexpected_error_of_a_search_fails_its_engine_alone(node: Node) -> None:
    node.backends["a"] = Unreadable("a", node.awake)
    node.serving.expect(InstanceId("a", Chunk(0, 1)))
    await _use(node, "h1", "b")
    assert node.backends["a"].steps["stop"] == 1, "it may hold memory"
    assert not node.serving._failed.is_set()


async def test_an_engine_whose_backend_could_not_be_made_is_made_again_by_its_probe() -> None:
    node = Node(first_probe_s=0.05)
    node.backends["a"].fails["make"] = LookupError("a bug")
    with pytest.raises(NotServed, match="internal error: LookupError"):
        await _use(node, "h1", "a")
    node.backends["a"].fails.clear()

    async def is_resident() -> bool:
        return node.state("a") == "resident"

    await soon(is_resident)
    await _use(node, "h2", "a")
    await node.serving.stop(5.0)


async def test_a_given_engine_whose_backend_cannot_be_made_stops_no_other(node: Node) -> None:
    node.backends["a"].fails["make"] = LookupError("a bug")
    node.serving.expect(InstanceId("a", Chunk(0, 1)))
    await _use(node, "h1", "b")
    with pytest.raises(NotServed, match="internal error: LookupError"):
        await _use(node, "h2", "a")
    assert not node.serving._failed.is_set()


async def test_an_unexpected_error_of_a_watch_is_the_end_of_its_engine(node: Node) -> None:
    node.backends["a"] = engine = Unwatched("a", node.awake)
    await _use(node, "h1", "a")
    engine.died.set()
    await _use(node, "h2", "b")
    assert engine.steps["stop"] == 1
    assert not node.serving._failed.is_set()


async def test_an_error_of_an_abort_or_a_stop_of_the_node_stops_no_other(node: Node) -> None:
    engine = node.backends["a"]
    await _use(node, "h1", "a")
    engine.fails["abort"] = engine.fails["stop"] = LookupError("a bug")
    await abort_requests(InstanceId("a", Chunk(0, 1)), engine)
    await node.serving.stop(5.0)
    assert (engine.steps["abort"], engine.steps["stop"]) == (1, 1)
    node.awake.clear()


async def test_an_error_of_the_machine_ends_the_service(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(NodeServing, "handle", fails)
    with pytest.raises(LookupError, match="a bug"):
        await _use(node, "h1", "a")
    with pytest.raises(LookupError, match="a bug"):
        await node.serving.failed()


async def _use(node: Node, holder: str, name: str, within_s: float = 5.0) -> None:
    async with node.using(holder, name, within_s):
        assert node.awake == {name}


# ---- actions ---------------------------------------------------------------------------------------------------------


def grant(number: int, service: str, *, budget_s: float = 10.0, gpus: tuple[int, ...] = (0,)) -> Granted:
    params = {
        "service": service, "messages": [{"role": "user", "content": "x"}], "score": {"regex": "is ([0-9])"}
    }  # fmt: skip
    return Granted(
        action=f"A{number}", epoch=1, attempt=1, tenant="t", stage=0, work="model.judge",
        params=msgspec.json.encode(params), units={GPUS: len(gpus)}, timeout_s=10.0, budget_s=budget_s,
        service=service, numbers=list(gpus),
    )  # fmt: skip


async def says_7(_: web.Request) -> web.Response:
    choice = {"message": {"role": "assistant", "content": "it is 7"}, "finish_reason": "stop"}
    return web.json_response({"choices": [choice]})


async def never(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def run(executor: GpuExecutor, one: Granted) -> AttemptResult:
    executor.resources[GPUS].use(one.units[GPUS], SYSTEM_CLOCK.monotonic())
    task = executor.start(one)
    try:
        return await task
    finally:
        executor.resources[GPUS].use(-one.units[GPUS], SYSTEM_CLOCK.monotonic())
        executor.release(one, task)


@asynccontextmanager
async def executing(node: Node) -> AsyncIterator[GpuExecutor]:
    async with open_streams(connect_s=2.0) as http, asyncio.timeout(20):
        kernels = KernelActions(node.memory.devices, NoArtifacts(), "libcuda.so.1", 4 << 20)
        yield GpuExecutor(node.serving, http, SYSTEM_CLOCK, 1, 4 << 20, kernels, Random(1))
        await node.serving.stop(5.0)


async def test_an_action_gets_the_score_of_its_service() -> None:
    async with running_engine(says_7) as engine:
        node = Node(engine.url)
        async with executing(node) as executor:
            result = await run(executor, grant(1, "a"))
            assert (result.status, result.score, result.evidence) == ("ok", 7.0, "separate")
            assert result.usage["gpu_s"] > 0
            assert executor.resources[GPUS].used == 0


async def test_an_engine_that_dies_during_an_action_loses_the_attempt() -> None:
    async with running_engine(never) as engine:
        node = Node(engine.url)
        async with executing(node) as executor:
            running = asyncio.create_task(run(executor, grant(1, "a")))
            await engine.called.wait()
            node.backends["a"].died.set()
            result = await running
            assert (result.status, result.score) == ("lost", None)
            assert "killed" in result.reason
            await engine.lost.wait()


async def lacks_memory(_: web.Request) -> web.Response:
    return web.json_response({"error": "CUDA out of memory"}, status=500)


async def test_an_engine_that_fails_calls_again_and_again_and_then_its_canary_is_loaded_anew() -> None:
    async with running_engine(lacks_memory) as engine:
        node = Node(engine.url)
        async with executing(node) as executor:
            for number in range(4):
                result = await run(executor, grant(number, "a"))
                assert (result.status, "out of memory" in result.reason) == ("lost", True)
                assert 0.0 < result.retry_in_s < 1.0, "the next attempt follows after a pause"
            assert node.backends["a"].steps == {"prepare": 1, "canary": 2}, "it has answered its canary"
            node.backends["a"].fails["canary"] = WrongAnswer("CUDA out of memory")
            for number in range(4, 7):
                result = await run(executor, grant(number, "a"))
            assert result.status == "postponed"
            while node.state("a") != "quarantined":  # noqa: ASYNC110  # its stop ends soon
                await asyncio.sleep(0.005)


def test_the_pause_after_a_failed_call_doubles_varies_and_is_a_part_of_the_time_that_is_left() -> None:
    rng = Random(7)
    longest_s = [max(failed_call("500", attempt, 60.0, rng).retry_in_s for _ in range(200)) for attempt in range(1, 7)]
    for most_s, found_s in zip([1.0, 2.0, 4.0, 4.0, 4.0, 4.0], longest_s, strict=True):
        assert 0.9 * most_s < found_s <= min(most_s, LONGEST_PAUSE_S)
    assert max(failed_call("500", 3, 0.4, rng).retry_in_s for _ in range(200)) == MOST_PAUSED * 0.4
    assert failed_call("500", 3, -1.0, rng) == AttemptResult("lost", reason="500"), "its deadline has passed"


async def test_an_action_whose_engine_is_quarantined_is_postponed() -> None:
    node = Node()
    node.backends["a"].fails["prepare"] = EngineError("it did not start")
    async with executing(node) as executor:
        result = await run(executor, grant(1, "a"))
        assert result.status == "postponed"
        assert result.retry_in_s > 0
        assert "it did not start" in result.reason


async def test_a_cancelled_action_closes_its_call() -> None:
    async with running_engine(never) as engine:
        node = Node(engine.url)
        async with executing(node) as executor:
            running = asyncio.create_task(run(executor, grant(1, "a")))
            await engine.called.wait()
            running.cancel()
            assert (await running).status == "cancelled"
            await engine.lost.wait()
            assert node.state("a") == "resident"


async def test_the_wait_for_a_restore_is_apart_from_the_execution() -> None:
    async with running_engine(says_7) as engine:
        node = Node(engine.url)
        node.backends["a"].slow_s["prepare"] = 0.2
        async with executing(node) as executor:
            first, second = await run(executor, grant(1, "a")), await run(executor, grant(2, "a"))
            assert first.restore_s >= 0.2
            assert second.restore_s < first.restore_s / 2, "it is resident"


async def test_a_cancelled_wait_for_a_restore_is_reported() -> None:
    node = Node()
    node.backends["a"].slow_s["prepare"] = 60.0
    async with executing(node) as executor:
        running = asyncio.create_task(run(executor, grant(1, "a")))
        await asyncio.sleep(0)  # its wait begins
        await asyncio.sleep(0.1)
        running.cancel()
        result = await running
        assert (result.status, result.restore_s >= 0.1) == ("cancelled", True)


@pytest.mark.parametrize("gpus", [(), (1, 0, 5), (0, 1, 2)])
async def test_a_grant_without_a_chunk_is_lost(gpus: tuple[int, ...]) -> None:
    async with executing(Node()) as executor:
        result = await run(executor, grant(1, "a", gpus=gpus))
        assert result.status == "lost"


async def test_gpus_of_a_shared_chunk_count_once() -> None:
    async with running_engine(never) as engine:
        node = Node(engine.url)
        entry = msgspec.structs.replace(node.serving.entries["a"], concurrency=2)
        node.serving.set_service("a", entry, spec_of("a", entry))
        async with executing(node) as executor:
            running = [asyncio.create_task(run(executor, grant(number, "a"))) for number in range(2)]
            await asyncio.sleep(0.1)
            assert len(engine.bodies) == 2
            assert executor.resources[GPUS].used == 1
            running[0].cancel()
            await asyncio.wait([running[0]])
            assert executor.resources[GPUS].used == 1
            running[1].cancel()
            await asyncio.wait([running[1]])
            assert executor.resources[GPUS].used == 0


# ---- engines that run already, changes, and the end ------------------------------------------------------------------


async def test_an_engine_that_runs_already_is_found_and_used_on_its_own_gpu_only() -> None:
    node = Node()
    given = {**ENTRY, "backend": "vllm", "url": "http://127.0.0.1:9", "first_gpu": 0}
    del given["command"]
    entry = read_entries(msgspec.json.encode({"a": given}))["a"]
    node.serving.set_service("a", entry, spec_of("a", entry))
    (instance,) = given_engines("a", entry)
    node.awake.add("a")
    async with asyncio.timeout(20):
        node.serving.expect(instance)
        await _use(node, "h1", "a")
        assert node.backends["a"].steps == {"abort": 1, "canary": 1}, "it was resident, and was not started"
        with pytest.raises(NotServed, match="no engine"):
            async with node.serving.using("h2", InstanceId("a", Chunk(1, 1)), SYSTEM_CLOCK.monotonic() + 1):
                pass
        await node.serving.stop(5.0)


async def test_a_changed_service_is_started_by_its_new_entry_and_a_removed_one_is_not_offered(node: Node) -> None:
    await _use(node, "h1", "a")
    first = node.backends["a"]
    node.backends["a"] = WrittenBackend("a", node.awake)
    entry = msgspec.structs.replace(node.serving.entries["a"], command=["y", "{port}"])
    node.serving.set_service("a", entry, spec_of("a", entry))
    await _use(node, "h2", "a")
    assert (first.steps["stop"], node.backends["a"].steps["prepare"]) == (1, 1)
    node.serving.remove_service("a")
    assert node.serving.declared.keys() == {"b"}
    with pytest.raises(NotServed):
        await _use(node, "h3", "a")


async def test_a_stop_ends_in_its_time_and_nothing_starts_after_it() -> None:
    node = Node()
    await _use(node, "h1", "a")
    hangs = node.backends["a"]

    async def never_stops() -> None:
        await asyncio.Event().wait()

    hangs.stop = never_stops  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        await node.serving.stop(0.2)
    waiting = asyncio.create_task(_use(node, "h2", "b", within_s=0.2))
    await asyncio.wait([waiting], timeout=0.3)
    assert node.backends["b"].steps == {}
    waiting.cancel()


async def test_an_error_of_the_system_fails_one_engine_and_not_the_node(node: Node) -> None:
    node.backends["a"].fails["prepare"] = OSError(24, "Too many open files")
    with pytest.raises(NotServed, match="Too many open files"):
        await _use(node, "h1", "a")
    await _use(node, "h2", "b")


# ---- changes of services ---------------------------------------------------------------------------------------------


async def test_a_holder_keeps_the_model_of_its_engine_while_its_service_is_changed(node: Node) -> None:
    instance = InstanceId("a", Chunk(0, 1))
    changed = msgspec.structs.replace(node.serving.entries["a"], model="other")
    async with node.using("1", "a"):
        node.serving.set_service("a", changed, spec_of("a", changed))
        assert node.serving.address(instance).model == "m", "its engine is the old one"
        waiting = asyncio.create_task(node.using("2", "a").__aenter__())
        await asyncio.sleep(0.01)
        assert not waiting.done()
    await waiting
    assert node.serving.address(instance).model == "other"
    assert (node.backends["a"].steps["stop"], node.backends["a"].steps["prepare"]) == (1, 2)


async def test_nothing_of_a_removed_service_is_kept(node: Node) -> None:
    async with node.using("1", "a"):
        node.serving.remove_service("a")
        assert set(node.serving.declared) == {"b"}
        assert set(node.serving.entries) == {"a", "b"}, "its engine is still in use"

    async def forgotten() -> bool:
        return set(node.serving.entries) == {"b"}

    await soon(forgotten)
    node.serving.remove_service("b")
    assert node.serving.entries == {}
    node.serving.remove_service("unknown")
