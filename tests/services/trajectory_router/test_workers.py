"""Workers at their public routes: registration, drain, removal, health by progress."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from services.trajectory_router.leadership import RouterLeadership
from tests.services.trajectory_router.conftest import RouterUnderTest, StartRouter
from tests.services.trajectory_router.engine import running_engine


async def until(holds: Callable[[], Awaitable[bool]], limit_s: float = 30) -> None:
    async with asyncio.timeout(limit_s):
        while not await holds():  # noqa: ASYNC110  # a state of the router
            await asyncio.sleep(0.05)


async def state_of(router: RouterUnderTest, url: str) -> str | None:
    state: str | None = (await router.workers())[url]["state"]
    return state


async def whole(call: asyncio.Task[aiohttp.ClientResponse]) -> bytes:
    """The whole answer of a call that was made in the background."""
    async with await call as response:
        assert response.status == 200
        return await response.read()


async def test_both_forms_of_an_id_remove_a_worker(start_router: StartRouter) -> None:
    router = await start_router(2)
    by_id, by_url = router.engines
    worker = (await router.workers())[by_id.url]["id"]
    async with router.http.delete(f"/workers/{worker}") as response:
        assert response.status == 202
    encoded = quote(by_url.url, safe="")
    async with router.http.delete(URL(f"{router.url}/workers/{encoded}", encoded=True)) as response:
        assert response.status == 202
    assert await router.workers() == {}
    async with router.http.delete(f"/workers/{worker}") as response:
        assert response.status == 404


async def test_a_call_right_after_the_registration_is_carried(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late the message to all routers is read."""
    read = RouterLeadership._read

    async def read_late(self: RouterLeadership, message: object) -> None:
        await asyncio.sleep(0.5)
        await read(self, message)

    monkeypatch.setattr(RouterLeadership, "_read", read_late)
    router = await start_router(1)
    async with await router.chat() as response:
        assert response.status == 200, await response.text()


async def test_engines_are_registered_by_a_query(start_router: StartRouter) -> None:
    router = await start_router(0)
    async with running_engine("e") as engine:
        for path, expected in (("/add_worker", [engine.url]), ("/remove_worker", [])):
            async with router.http.post(path, params={"url": engine.url}) as response:
                assert response.status == 202, await response.text()
            async with router.http.get("/list_workers") as response:
                assert (await response.json())["urls"] == expected
    for url in ("", "ftp://a", "http://a/path"):
        async with router.http.post("/add_worker", params={"url": url}) as response:
            assert response.status == 422, url


async def test_a_drained_worker_finishes_its_calls_and_gets_no_new_ones(start_router: StartRouter) -> None:
    router = await start_router(2)
    drained, other = router.engines
    drained.gate = other.gate = asyncio.Event()
    calls = [asyncio.create_task(router.chat(f"t{number}")) for number in range(8)]

    async def all_run() -> bool:
        return bool(drained.running + other.running == 8)

    await until(all_run)
    had = len(drained.received)
    worker = (await router.workers())[drained.url]["id"]
    async with router.http.post(f"/workers/{worker}/drain") as response:
        assert response.status == 202
    await until(lambda: _is(router, drained.url, "draining"))
    drained.gate.set()
    bodies = [await whole(call) for call in calls]
    assert bodies.count(drained.whole()) == had > 0, "its calls ended there"
    for number in range(8):
        async with await router.chat(f"t{number}") as response:
            assert await response.read() == other.whole()
    await router.register(drained)
    await until(lambda: _is(router, drained.url, "ready"))


async def _is(router: RouterUnderTest, url: str, state: str) -> bool:
    return await state_of(router, url) == state


async def test_a_removed_worker_ends_no_running_call(start_router: StartRouter) -> None:
    router = await start_router(1)
    (engine,) = router.engines
    engine.chunks, engine.pause_s = 30, 0.05
    worker = (await router.workers())[engine.url]["id"]
    received = b""
    async with await router.chat(stream=True) as response:
        async for part in response.content.iter_any():
            if not received:
                async with router.http.delete(f"/workers/{worker}") as removed:
                    assert removed.status == 202
            received += part
    assert received == b"".join(engine.events())


async def test_a_frozen_worker_leaves_rotation_and_its_health_route_does_not_count(start_router: StartRouter) -> None:
    router = await start_router(2, stall_s=0.5, canary_s=0.5)
    frozen, other = router.engines
    for number in range(8):  # pins on both
        async with await router.chat(f"t{number}") as response:
            await response.read()
    frozen.frozen = True
    stuck = [asyncio.create_task(router.chat(f"t{number}")) for number in range(8)]
    await until(lambda: _is(router, frozen.url, "failed"))
    assert frozen.canaries > 0
    for number in range(8):
        async with await router.chat(f"t{number}") as response:
            assert await response.read() == other.whole()
    async with asyncio.timeout(20):
        assert {await whole(call) for call in stuck} == {other.whole()}, "calls without a byte have left it, too"
    frozen.frozen = False
    await router.register(frozen)
    await until(lambda: _is(router, frozen.url, "ready"))


async def test_a_long_prefill_stays_in_rotation(start_router: StartRouter) -> None:
    router = await start_router(1, stall_s=0.3, canary_s=20)
    (engine,) = router.engines
    engine.gate = asyncio.Event()
    call = asyncio.create_task(router.chat())

    async def asked() -> bool:
        assert not call.done(), call
        return bool(engine.canaries >= 3)

    await until(asked)
    await until(lambda: _is(router, engine.url, "ready"))
    engine.gate.set()
    assert await whole(call) == engine.whole()


async def test_a_restarted_worker_is_registered_again(start_router: StartRouter) -> None:
    router = await start_router(1)
    async with running_engine("second") as second:
        first = await router.register(second, labels={"rack": "7"}, most_calls=3)
        again = await router.register(second)
        assert first == again
        worker = (await router.workers())[second.url]
        assert (worker["most_calls"], worker["models"], worker["labels"]) == (None, ["tiny"], {})


async def test_workers_need_the_operators_key_where_there_is_one(start_router: StartRouter) -> None:
    router = await start_router(0, operator_key="s3cret")
    async with running_engine("e") as engine:
        for headers, status in (
            ({}, 403),
            ({"authorization": "Bearer no"}, 403),
            ({"authorization": "Bearer s3cret"}, 202),
        ):
            async with router.http.post("/workers", json={"url": engine.url}, headers=headers) as response:
                assert response.status == status
                assert "s3cret" not in await response.text()
    for method, path in (("GET", "/workers"), ("GET", "/list_workers"), ("POST", "/add_worker?url=http://127.0.0.1:1")):
        async with router.http.request(method, path) as response:
            assert response.status == 403, path


async def test_a_worker_elsewhere_than_at_an_address_is_refused(start_router: StartRouter) -> None:
    router = await start_router(0)
    for url in ("ftp://a", "http://a/path", "http://user@a", "a:80", "http://a?x"):
        async with router.http.post("/workers", json={"url": url}) as response:
            assert response.status == 422, url
