"""vLLM's contract, line by line (facts A2), against a server that misbehaves as vLLM does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from services.gpu_manager.backends.protocol import EngineError, EngineGone, Level, OutOfMemory, WrongAnswer
from services.gpu_manager.backends.vllm import VllmBackend
from tests.services.gpu_manager.backends.engines import QUICK, Engines, command, until
from tests.services.gpu_manager.backends.vllm_server import Switches, VllmServer, running_vllm

READS = {"GET /is_sleeping", "GET /metrics", "GET /health"}


@asynccontextmanager
async def prepared(engines: Engines, **switches: Any) -> AsyncIterator[tuple[VllmServer, VllmBackend]]:
    """A server with switches, and the backend that has found it."""
    async with running_vllm(Switches(**switches)) as server:
        backend = engines.vllm(server.url, evict_s=1.0, restore_s=1.0)
        await backend.prepare()
        server.calls.clear()
        yield server, backend


def changes(server: VllmServer) -> list[str]:
    """Return the calls that change something."""
    return [call for call in server.calls if call not in READS]


@pytest.mark.parametrize(("level", "number"), [("asleep1", 1), ("asleep2", 2)])
async def test_the_level_is_in_the_query_and_no_body_is_sent(engines: Engines, level: Level, number: int) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict(level)
        assert changes(server) == [f"POST /sleep?level={number}&mode=abort"]
        assert set(server.bodies) == {""}
        assert server.weights == {1: "host", 2: "dropped"}[number]


async def test_a_level_in_the_body_is_ignored_and_level_3_is_a_422(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        control = engines.servers[-1]
        assert await control.call("POST", "/sleep", {"level": 2}, within_s=5) == {"status": "sleeping", "level": 1}
        assert server.weights == "host"
        with pytest.raises(EngineError, match=r"POST /sleep\?level=3 was answered with 422: .*less than or equal to 2"):
            await control.call("POST", "/sleep?level=3", within_s=5)
        assert await backend.residency() == "asleep1"


async def test_level_1_is_left_by_one_wake_up(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep1")
        server.calls.clear()
        await backend.restore()
        assert changes(server) == ["POST /wake_up"]
        await backend.canary()


async def test_level_2_is_left_in_the_exact_order(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep2")
        server.calls.clear()
        server.bodies.clear()
        await backend.restore()
        assert changes(server) == [
            "POST /wake_up?tags=weights",
            "POST /collective_rpc",
            "POST /wake_up?tags=kv_cache",
            "POST /reset_prefix_cache",
        ]
        assert '{"method":"reload_weights"}' in server.bodies
        await backend.canary()


async def test_the_canary_catches_a_wake_from_level_2_without_reload(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep2")
        await engines.servers[-1].call("POST", "/wake_up", within_s=5)
        assert await backend.residency() == "resident"
        with pytest.raises(WrongAnswer, match="'!!!!', which does not contain '4'"):
            await backend.canary()
        assert server.weights == "dropped"


@pytest.mark.parametrize("level", ["asleep1", "asleep2"])
async def test_a_sleep_without_effect_is_an_error(engines: Engines, level: Level) -> None:
    async with prepared(engines, sleep_has_no_effect=True) as (_, backend):
        with pytest.raises(EngineError, match="answered 200, but was not asleep after 1 s"):
            await backend.evict(level)
        assert await backend.residency() == "resident"


async def test_a_sleep_at_another_level_is_an_error(engines: Engines) -> None:
    async with prepared(engines, ignores_level=True) as (_, backend):
        with pytest.raises(EngineError, match="entered sleep level 1, not 2"):
            await backend.evict("asleep2")
        assert await backend.residency() == "unknown"
        await backend.restore()
        await backend.canary()


async def test_the_gauge_shows_another_level_of_a_server_with_empty_answers(engines: Engines) -> None:
    async with prepared(engines, ignores_level=True, old_answers=True) as (_, backend):
        with pytest.raises(EngineError, match="metrics show asleep1 after a sleep at level 2"):
            await backend.evict("asleep2")


async def test_another_level_is_entered_only_after_a_restore(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep1")
        with pytest.raises(EngineError, match="is asleep1; restore it before"):
            await backend.evict("asleep2")
        assert server.gauge == "weights_offloaded", "a second sleep would have changed the gauge, and nothing else"
        assert await backend.residency() == "asleep1"


@pytest.mark.parametrize("level", ["asleep1", "asleep2"])
async def test_a_wake_without_effect_is_an_error(engines: Engines, level: Level) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict(level)
        server.switches.wake_has_no_effect = True
        with pytest.raises(EngineError, match="not awake"):
            await backend.restore()
        assert await backend.residency() == "unknown"
        server.switches.wake_has_no_effect = False
        await backend.restore()
        await backend.canary()


async def test_a_wake_without_effect_and_with_an_empty_answer_is_an_error(engines: Engines) -> None:
    async with prepared(engines, old_answers=True) as (server, backend):
        await backend.evict("asleep1")
        server.switches.wake_has_no_effect = True
        with pytest.raises(EngineError, match="answered 200, but was not awake"):
            await backend.restore()


async def test_a_partial_wake_is_an_error_and_not_resident(engines: Engines) -> None:
    async with prepared(engines, wakes_partially=True) as (server, backend):
        await backend.evict("asleep1")
        with pytest.raises(EngineError, match="status 'sleeping': the engine is not awake"):
            await backend.restore()
        assert server.asleep == {"kv_cache"}
        assert await backend.residency() == "unknown"


async def test_an_unknown_tag_is_a_no_op_with_200(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep1")
        answer = await engines.servers[-1].call("POST", "/wake_up?tags=weights&tags=graphs", within_s=5)
        assert answer["status"] == "sleeping"
        assert server.asleep == {"weights", "kv_cache"}
        assert await backend.residency() == "asleep1"


@pytest.mark.parametrize("level", ["asleep1", "asleep2"])
async def test_a_wake_out_of_memory_can_be_repeated(engines: Engines, level: Level) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict(level)
        server.switches.wake_ooms = 1
        with pytest.raises(OutOfMemory, match=r"answered with 500: .*out of memory"):
            await backend.restore()
        assert await backend.residency() == "unknown"
        await backend.restore()
        assert await backend.residency() == "resident"
        await backend.canary()


async def test_a_failed_reload_leaves_it_unknown_and_can_be_repeated(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep2")
        server.switches.reload_fails = True
        with pytest.raises(EngineError, match=r"no such file: model\.safetensors"):
            await backend.restore()
        assert await backend.residency() == "unknown"
        with pytest.raises(EngineError, match="the engine sleeps"):
            await backend.canary()
        server.switches.reload_fails = False
        await backend.restore()
        await backend.canary()


async def test_a_prefix_cache_in_use_is_reset_again(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep2")
        server.switches.prefix_resets_fail = 2
        await backend.restore()
        assert server.calls.count("POST /reset_prefix_cache") == 3


async def test_health_is_200_while_it_sleeps_and_decides_nothing(engines: Engines) -> None:
    async with prepared(engines) as (_, backend):
        await backend.evict("asleep1")
        assert (await engines.servers[-1].send("GET", "/health", within_s=5)).status == 200
        assert await backend.residency() == "asleep1"


async def test_residency_wakes_nothing_and_reads_only(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep2")
        server.calls.clear()
        for _ in range(3):
            assert await backend.residency() == "asleep2"
        assert set(server.calls) == {"GET /is_sleeping"}
        assert (server.asleep, server.weights) == ({"weights", "kv_cache"}, "dropped")


async def test_a_request_to_a_sleeping_engine_hangs_until_it_wakes(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep1")
        request = asyncio.create_task(
            engines.servers[-1].call("POST", "/v1/completions", {"prompt": "2+2="}, within_s=30)
        )
        await until(lambda: server.waiting > 0)
        with pytest.raises(EngineError, match="the engine sleeps"):
            await backend.canary()
        assert not request.done()
        await backend.restore()
        assert (await request)["choices"][0]["text"] == " 4"


async def test_a_sleep_with_running_requests_kills_the_engine_and_is_noticed(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        control = engines.servers[-1]
        request = asyncio.create_task(control.send("POST", "/v1/completions", {"prompt": "hold"}, within_s=30))
        await until(lambda: server.running > 0)
        assert backend.flags.needs_idle
        with pytest.raises(EngineError):
            await backend.evict("asleep1")
        assert server.core_is_dead
        assert await backend.residency() == "unknown"
        with pytest.raises(EngineError):
            await request


async def test_a_process_that_dies_after_its_200_is_gone(engines: Engines) -> None:
    server = engines.started(*command("vllm_server.py"), deadlines=replace(QUICK, settle_s=1.0))
    backend = VllmBackend(server)
    await backend.prepare()
    request = asyncio.create_task(server.send("POST", "/v1/completions", {"prompt": "hold"}, within_s=30))

    async def is_running() -> bool:
        return b'model_name="tiny"} 1.0' in (await server.send("GET", "/metrics", within_s=5)).body

    await server.poll(is_running, within_s=20, failure="no request runs")
    with pytest.raises(EngineError):
        await backend.evict("asleep1")
    assert "exit status 139" in await backend.ended()
    assert await backend.residency() == "cold"
    with pytest.raises(EngineGone):
        await request
    await backend.stop()


async def test_abort_ends_running_requests(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        control = engines.servers[-1]
        request = asyncio.create_task(control.call("POST", "/v1/completions", {"prompt": "hold"}, within_s=30))
        await until(lambda: server.running > 0)
        await backend.abort()
        assert (await request)["choices"][0]["finish_reason"] == "abort"
        await backend.evict("asleep1")
        assert not server.core_is_dead


async def test_abort_without_the_route_is_left_to_the_sleep(engines: Engines) -> None:
    async with prepared(engines, aborts=False) as (server, backend):
        await backend.abort()
        assert changes(server) == ["POST /abort_requests"]


@pytest.mark.parametrize(("level", "wakes"), [(1, ["POST /wake_up"]), (2, ["POST /wake_up?tags=weights"])])
async def test_a_new_manager_reads_the_level_from_the_gauge(engines: Engines, level: int, wakes: list[str]) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict(f"asleep{level}")  # type: ignore[arg-type]
        later = engines.vllm(server.url)
        assert await later.residency() == f"asleep{level}"
        server.calls.clear()
        await later.restore()
        assert changes(server)[:1] == wakes
        await later.canary()


@pytest.mark.parametrize("level", ["asleep1", "asleep2"])
async def test_without_a_gauge_the_level_is_unknown_and_left_by_a_reload(engines: Engines, level: Level) -> None:
    async with prepared(engines, gauge=False) as (server, backend):
        await backend.evict(level)
        assert await backend.residency() == level, "this backend did it"
        later = engines.vllm(server.url)
        assert await later.residency() == "unknown"
        with pytest.raises(EngineError, match="is unknown; restore it before"):
            await later.evict("asleep1")
        await later.prepare()
        assert "POST /collective_rpc" in server.calls
        assert await later.residency() == "resident"
        await later.canary()


async def test_a_manager_killed_between_wake_and_reload_loads_the_weights_again(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep2")
        await engines.servers[-1].call("POST", "/wake_up?tags=weights", within_s=5)
        later = engines.vllm(server.url)
        assert await later.residency() == "asleep2"
        await later.restore()
        await later.canary()


async def test_a_paused_engine_is_not_resident_and_restore_resumes_it(engines: Engines) -> None:
    async with prepared(engines) as (_, backend):
        await engines.servers[-1].call("POST", "/sleep?level=0", within_s=5)
        assert await backend.residency() == "unknown"
        await backend.restore()
        assert await backend.residency() == "resident"
        await backend.canary()


async def test_a_server_without_dev_mode_is_refused_with_what_to_write(engines: Engines) -> None:
    async with running_vllm(Switches(dev_mode=False)) as server:
        backend = engines.vllm(server.url)
        with pytest.raises(EngineError, match=r'--enable-sleep-mode and VLLM_SERVER_DEV_MODE=1, or .*"process"'):
            await backend.prepare()
        assert await backend.residency() == "unknown"


async def test_a_started_server_without_dev_mode_is_stopped_again(engines: Engines) -> None:
    backend = VllmBackend(engines.started(*command("vllm_server.py", {"dev_mode": False})))
    with pytest.raises(EngineError, match="--enable-sleep-mode"):
        await backend.prepare()
    assert (await backend.residency(), backend.url) == ("cold", "")


async def test_a_reading_that_hangs_ends_and_is_unknown(engines: Engines) -> None:
    async with prepared(engines) as (server, _):
        server.switches.is_deaf = True
        backend = engines.vllm(server.url, read_s=0.2)
        assert await backend.residency() == "unknown"
        with pytest.raises(EngineError, match=r"GET /is_sleeping had no complete answer within 0\.2 s"):
            await backend.restore()
