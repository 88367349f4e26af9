"""Values of the proxy's metrics: each one changes when its event happens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from prometheus_client import REGISTRY
from redis.asyncio import Redis

from services.proxy.app import create_app
from services.proxy.records.archiver import Archiver
from services.proxy.records.memory import ValkeyMemory
from services.proxy.settings import ProxySettings
from shared.bus.connection import ValkeyClock
from shared.messages.grants import Granted
from shared.store import database
from tests.services.proxy.http.test_hot_routes import TASK, Caller, calling, line
from tests.services.proxy.in_process import SimulatedNode, serving
from tests.shared.bus.soon import soon

PREFIX = "treadle_proxy_"
NOOP = {"kind": "noop", "units": {"cores": 1}}


def sample(name: str, **labels: str) -> float | None:
    """Sample of this process's metrics, which other tests have changed before; None: it is not exported."""
    return REGISTRY.get_sample_value(PREFIX + name, labels)


async def changes(name: str, before: float | None, by: float, **labels: str) -> None:
    """Wait until the sample is larger than `before` by so much."""

    async def has_changed() -> bool:
        return sample(name, **labels) == (before or 0.0) + by

    await soon(has_changed)


def at_once(grant: Granted, params: dict[str, Any]) -> dict[str, Any]:
    return {}


def executed(grant: Granted, params: dict[str, Any]) -> dict[str, Any]:
    return {"output": {"status": "Success"}}


async def test_submissions_are_counted_by_their_outcome(redis_url: str) -> None:
    async with calling(redis_url) as caller:
        batch = await caller.open(size=2)
        before = {outcome: sample("submitted_total", outcome=outcome) for outcome in ("accepted", "repeated")}
        rejected = sample("submitted_total", outcome="rejected")
        await caller.bulk(line("a"), line("b"), line("c"), batch=batch)
        await caller.bulk(line("a"), batch=batch)

        await changes("submitted_total", before["accepted"], 2, outcome="accepted")
        await changes("submitted_total", before["repeated"], 1, outcome="repeated")
        await changes("submitted_total", rejected, 1, outcome="rejected")


async def test_answers_are_counted_with_their_times(redis_url: str) -> None:
    queued = {"pool": "cores@default", "stage": "run"}
    async with calling(redis_url) as caller, SimulatedNode.up(redis_url, at_once):
        ok, acts = sample("answered_total", ended="ok"), sample("act_seconds_count")
        queues, total_s = sample("queue_seconds_count", **queued), sample("act_seconds_sum")
        assert (await caller.ask("PUT", "/v1/tasks/t", TASK))[0] < 300
        status, answer = await caller.ask("POST", "/v1/rewards?wait=20", {"task": "t", "params": {}})
        assert (status, answer["ended"]) == (200, "ok")

        await changes("answered_total", ok, 1, ended="ok")
        await changes("act_seconds_count", acts, 1)
        await changes("queue_seconds_count", queues, 1, **queued)
        assert (sample("act_seconds_sum") or 0.0) > (total_s or 0.0)

        cancelled = sample("answered_total", ended="cancelled")
        _, waiting = await caller.ask("POST", "/v1/actions", {**NOOP, "node_class": "absent"})
        await caller.ask("DELETE", f"/v1/actions/{waiting['id']}")
        await changes("answered_total", cancelled, 1, ended="cancelled")


async def test_gauges_of_the_leader_are_set_while_it_leads_and_cleared_at_the_end(redis_url: str) -> None:
    absent = {"pool": "cores@absent"}
    async with calling(redis_url) as caller, SimulatedNode.up(redis_url, at_once):
        await caller.ask("POST", "/v1/actions", {**NOOP, "node_class": "absent"})

        async def all_set() -> bool:
            counts = [sample("queued_actions", **absent), sample("stuck_actions", **absent)]
            counts += [sample("unanswered_actions"), sample("nodes", state="ready"), sample("leader_up")]
            counts += [sample("store_up", store="valkey")]
            return counts == [1.0] * len(counts) and (sample("leader_epoch") or 0) >= 1

        await soon(all_set)
        assert sample("planner_up") == sample("store_up", store="postgres") == 0.0

    assert sample("leader_epoch") == sample("unanswered_actions") == 0.0
    assert sample("nodes", state="ready") is None
    assert sample("queued_actions", **absent) is sample("stuck_actions", **absent) is None


async def test_memory_and_disk_of_the_stores_are_measured(redis_url: str, tmp_path: Path) -> None:
    treadle = {"redis_url": redis_url, "store_paths": str(tmp_path)}
    async with Redis.from_url(redis_url) as redis:
        bound = int((await redis.config_get("maxmemory"))["maxmemory"] or 0)
        async with calling(redis_url, treadle=treadle):

            async def is_measured() -> bool:
                assert sample("disk_total_bytes") in (None, 0.0, psutil.disk_usage(str(tmp_path)).total)
                disk = 0 < (sample("disk_free_bytes") or 0) < (sample("disk_total_bytes") or 0)
                return disk and 0 < (sample("valkey_used_bytes") or 0) < bound == sample("valkey_bound_bytes")

            await soon(is_measured)


# ---- /run_code ---------------------------------------------------------------------------------------------------


async def run_code(caller: Caller, code: str = "", **headers: str) -> tuple[int, bytes]:
    body = {"code": code, "language": "python", "run_timeout": 0.1, "compile_timeout": 0.1}
    async with caller.http.post("/run_code", json=body, headers=headers) as reply:
        return reply.status, await reply.read()


async def test_run_code_calls_are_counted_by_their_end(redis_url: str) -> None:
    """Without a node there is no answer."""
    names = ("late", "gave-up", "disconnected", "answered")
    quick = {"run_code_margin_s": 0.1, "hold_s": 1.0, "hold_blank_s": 0.1}
    async with calling(redis_url, **quick) as caller:
        before = {name: sample("run_code_calls_total", ended=name) for name in names}
        held = sample("held_calls")

        assert (await run_code(caller))[0] == 504
        await changes("run_code_calls_total", before["late"], 1, ended="late")

        status, body = await run_code(caller, **{"user-agent": "python-requests/2"})
        assert (status, json.loads(body)["status"]) == (200, "SandboxError")
        await changes("run_code_calls_total", before["gave-up"], 1, ended="gave-up")
        assert sample("held_calls") == held
        assert sample("run_code_calls_total", ended="disconnected") == before["disconnected"]
        assert sample("run_code_calls_total", ended="answered") == before["answered"]


async def test_run_code_callers_that_go_are_counted(redis_url: str) -> None:
    async with calling(redis_url) as caller:
        for agent in ("python-requests/2", "other"):
            before, held = sample("run_code_calls_total", ended="disconnected"), sample("held_calls") or 0.0
            accepted = sample("submitted_total", outcome="accepted")
            call = asyncio.create_task(run_code(caller, f"# {agent}", **{"user-agent": agent}))
            await changes("submitted_total", accepted, 1, outcome="accepted")
            assert sample("held_calls") == held + (agent != "other")
            call.cancel()
            await asyncio.wait({call})
            await changes("run_code_calls_total", before, 1, ended="disconnected")
            await changes("held_calls", held, 0)


@pytest.mark.parametrize("agent", ["python-requests/2", "other"])
async def test_answered_run_code_calls_are_counted(redis_url: str, agent: str) -> None:
    async with calling(redis_url) as caller, SimulatedNode.up(redis_url, executed, "code.run"):
        before, late = (sample("run_code_calls_total", ended=name) for name in ("answered", "late"))
        assert (await run_code(caller, **{"user-agent": agent}))[0] == 200
        await changes("run_code_calls_total", before, 1, ended="answered")
        assert sample("run_code_calls_total", ended="late") == late


@pytest.mark.parametrize(("agent", "status"), [("python-requests/2", 200), ("other", 504)])
async def test_run_code_calls_that_a_stopping_proxy_ends_are_counted(redis_url: str, agent: str, status: int) -> None:
    """Without a node there is no answer."""
    settings = ProxySettings.model_validate({"treadle": {"redis_url": redis_url}, "hold_blank_s": 0.1})
    stopped, accepted = sample("run_code_calls_total", ended="stopped"), sample("submitted_total", outcome="accepted")
    async with aiohttp.ClientSession() as http:
        async with serving(create_app(settings), grace_s=1) as url:
            body = {"code": f"# {agent}", "language": "python"}
            call = asyncio.create_task(_status(http, f"{url}/run_code", body, {"user-agent": agent}))
            await changes("submitted_total", accepted, 1, outcome="accepted")
        assert await call == status
    assert sample("run_code_calls_total", ended="stopped") == (stopped or 0.0) + 1


async def _status(http: aiohttp.ClientSession, url: str, body: dict[str, Any], headers: dict[str, str]) -> int:
    async with http.post(url, json=body, headers=headers) as reply:
        await reply.read()
        return reply.status


async def test_bytes_of_bodies_under_way_are_counted(redis_url: str) -> None:
    going = asyncio.Event()

    async def parts() -> Any:
        yield b" " * 1000
        await going.wait()
        yield line("a", task="absent")

    async with calling(redis_url) as caller:
        call = asyncio.create_task(_post(caller.http, parts()))
        await changes("body_bytes", 0.0, 1000)
        going.set()
        assert await call == 404
        await changes("body_bytes", 0.0, 0)


async def _post(http: aiohttp.ClientSession, body: Any) -> int:
    async with http.post("/v1/rewards/bulk", data=body) as reply:
        return reply.status


# ---- archive -----------------------------------------------------------------------------------------------------


async def test_failed_turns_of_the_archiver_are_counted(valkey: Redis) -> None:
    """Nobody listens at the database's address."""
    settings = ProxySettings.model_validate({"archive_after_s": 0.0})
    await valkey.zadd("unarchived", {"ada/b": 1.0})
    await valkey.xadd("results:b", {"a": b'{"id": "x"}'})
    before = sample("archive_failures_total")
    async with database.connect("postgresql+asyncpg://u@127.0.0.1:1/none", name="test") as sessions:
        clock = await ValkeyClock.measure(valkey)
        turning = asyncio.create_task(Archiver(valkey, sessions, clock, ValkeyMemory(valkey), settings).run())
        await changes("archive_failures_total", before, 1)
        turning.cancel()
        await asyncio.wait({turning})
