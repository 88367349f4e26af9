"""The relay at its public routes: bytes, disconnects, dead workers."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable

import aiohttp
import pytest
from yarl import URL

from tests.services.trajectory_router.conftest import StartRouter
from tests.services.trajectory_router.engine import free_port, running_engine


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # a field of an engine
            await asyncio.sleep(0.01)


async def test_an_answer_passes_byte_for_byte(start_router: StartRouter) -> None:
    router = await start_router(1)
    (engine,) = router.engines
    async with await router.chat(stream=True) as response:
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert await response.read() == b"".join(engine.events())
    async with await router.chat() as response:
        assert await response.read() == engine.whole()
        assert response.headers["x-request-id"] == "engine-1"
        assert response.headers["content-type"] == "application/json"


async def test_a_request_passes_byte_for_byte(start_router: StartRouter) -> None:
    router = await start_router(1)
    (engine,) = router.engines
    body = b'{ "model":"tiny",  "unknown": [1,2 ,3], "text": "\\u00e4"}'
    target = URL(f"{router.url}/v1/completions?beta=true&x=%2F", encoded=True)
    headers = {"x-request-id": "r1", "authorization": "Bearer client", "treadle-tenant": "ada", "x-session-id": "s"}
    async with router.http.post(target, data=body, headers=headers) as response:
        assert response.status == 200
    ((method, received, given),) = engine.received
    assert engine.bodies == [body]
    assert (method, received) == ("POST", "/v1/completions?beta=true&x=%2F")
    lower = {name.lower(): value for name, value in given.items()}
    assert (lower["x-request-id"], lower["authorization"], lower["x-session-id"]) == ("r1", "Bearer client", "s")
    assert "treadle-tenant" not in lower
    assert lower["host"] == engine.url.removeprefix("http://")


async def test_what_no_engine_has_is_an_error_that_clients_of_engines_read(start_router: StartRouter) -> None:
    router = await start_router(1)
    for method, path in (("POST", "/v1/audio/speech"), ("GET", "/v1/files"), ("HEAD", "/v1/files")):
        async with router.http.request(method, path, json={}) as response:
            assert response.status == 404, path
            if method != "HEAD":
                error = (await response.json())["error"]
                assert (error["code"], path in error["message"]) == (404, True), error
    assert router.engines[0].received == []


async def test_events_arrive_while_the_engine_still_writes(start_router: StartRouter) -> None:
    router = await start_router(1)
    (engine,) = router.engines
    engine.chunks, engine.pause_s = 50, 0.02
    async with await router.chat(stream=True) as response:
        await response.content.readuntil(b"e0-3")
        assert engine.running == 1, "the engine has not ended"
        await response.read()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_disconnects_ends_the_engines_call(start_router: StartRouter, *, stream: bool) -> None:
    router = await start_router(1)
    (engine,) = router.engines
    engine.gate = asyncio.Event()
    async with aiohttp.ClientSession(router.url) as client:
        call = asyncio.create_task(client.post("/v1/chat/completions", json={"model": "tiny", "stream": stream}))
        await until(lambda: engine.running == 1)
        call.cancel()
        await asyncio.wait([call])
    await until(lambda: engine.gone == 1)
    assert engine.running == 0


async def test_a_client_that_disconnects_in_a_stream_ends_the_engines_call(start_router: StartRouter) -> None:
    router = await start_router(1)
    (engine,) = router.engines
    engine.chunks, engine.pause_s = 10_000, 0.01
    async with aiohttp.ClientSession(router.url) as client:
        response = await client.post("/v1/chat/completions", json={"model": "tiny", "stream": True})
        await response.content.readuntil(b"e0-1")
        response.close()
    await until(lambda: engine.gone == 1 and engine.running == 0)


async def test_a_dead_worker_costs_its_clients_nothing(start_router: StartRouter) -> None:
    """Killed before its first byte: at the connection, and after the request."""
    router = await start_router(2)
    dying, other = router.engines
    answers = []
    for number in range(20):
        if number == 5:
            dying.drop = True
        async with await router.chat(f"t{number % 4}", stream=bool(number % 2)) as response:
            answers.append((response.status, await response.read()))
    assert {status for status, _ in answers} == {200}
    assert {body for _, body in answers[6:]} <= {b"".join(other.events()), other.whole(), b"".join(dying.events())}


async def test_a_worker_that_cannot_be_reached_costs_its_clients_nothing(start_router: StartRouter) -> None:
    router = await start_router(1)
    (alive,) = router.engines
    async with running_engine("gone") as gone:
        await router.register(gone)
    for number in range(12):
        async with await router.chat(f"t{number}") as response:
            assert (response.status, await response.read()) == (200, alive.whole())


async def test_nothing_is_repeated_after_the_first_byte(start_router: StartRouter) -> None:
    router = await start_router(2)
    for engine in router.engines:
        engine.break_after = 2
    async with await router.chat("t", stream=True) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert sum(len(engine.received) for engine in router.engines) == 1


async def test_an_answer_that_is_assembled_and_breaks_off_costs_its_client_nothing(start_router: StartRouter) -> None:
    """The client has no byte of it, although the engine has streamed some."""
    router = await start_router(0)
    async with running_engine("breaks") as breaks, running_engine("whole") as other:
        breaks.break_after = 2
        for engine in (breaks, other):
            async with router.http.post("/workers", json={"url": engine.url, "engine": "llamacpp"}) as registered:
                assert registered.status == 202
        for number in range(4):
            async with await router.chat(f"t{number}") as response:
                assert response.status == 200
                assert "whole-0whole-1whole-2" in await response.text()
        assert breaks.received


async def test_a_full_worker_sends_its_calls_to_another_one(start_router: StartRouter) -> None:
    router = await start_router(2)
    full, other = router.engines
    full.status, full.headers = 503, {"retry-after": "1"}
    for number in range(6):
        async with await router.chat(f"t{number}") as response:
            assert (response.status, await response.read()) == (200, other.whole())


async def test_an_engine_that_does_not_abort_costs_the_next_calls_no_error(start_router: StartRouter) -> None:
    """Its slot is taken until it ends a call that nobody waits for. Its 503 meanwhile is no failure of it."""
    router = await start_router(1, most_calls=1)
    (busy,) = router.engines
    busy.aborts, busy.slots, busy.gate = False, 1, asyncio.Event()
    async with aiohttp.ClientSession(router.url) as client:
        headers = {"x-trajectory-id": "t"}
        call = asyncio.create_task(client.post("/v1/chat/completions", json={"model": "tiny"}, headers=headers))
        await until(lambda: busy.running == 1)
        call.cancel()
        await asyncio.wait([call])
    await until(lambda: busy.gone == 1)
    assert busy.running == 1, "it goes on"
    async with running_engine("other") as other:
        await router.register(other)
        for _ in range(8):
            async with await router.chat("t") as response:
                assert (response.status, await response.read()) == (200, other.whole())
        async with asyncio.timeout(20):
            while (state := (await router.workers())[busy.url]["state"]) is None:  # noqa: ASYNC110  # of the router
                await asyncio.sleep(0.05)
        assert state == "ready"
    busy.gate.set()
    await until(lambda: not busy.running)
    async with await router.chat("t") as response:
        assert (response.status, await response.read()) == (200, busy.whole())


async def test_an_engines_own_error_passes(start_router: StartRouter) -> None:
    router = await start_router(1)
    router.engines[0].status = 400
    async with await router.chat() as response:
        assert (response.status, await response.read()) == (400, b'{"error":"engine"}')


async def test_calls_wait_for_a_capped_worker_and_all_are_answered(start_router: StartRouter) -> None:
    router = await start_router(2, most_calls=2)

    async def call(number: int) -> int:
        async with await router.chat(f"t{number}", stream=True) as response:
            await response.read()
            return int(response.status)

    for engine in router.engines:
        engine.pause_s = 0.02
    assert await asyncio.gather(*map(call, range(24))) == [200] * 24
    assert max(engine.most_running for engine in router.engines) == 2


async def test_a_trajectory_stays_on_its_worker(start_router: StartRouter) -> None:
    router = await start_router(3)
    workers: dict[str, set[str]] = {}
    for number in range(60):
        async with await router.chat(f"t{number % 6}") as response:
            await response.read()
            workers.setdefault(f"t{number % 6}", set()).add(response.headers["x-treadle-worker"])
    assert all(len(used) == 1 for used in workers.values())
    assert len(set.union(*workers.values())) == 3, "trajectories spread over the workers"


async def test_without_workers_the_error_says_what_to_do(start_router: StartRouter) -> None:
    router = await start_router(0)
    async with await router.chat() as response:
        error = (await response.json())["error"]
        assert response.status in (404, 503)
        assert "worker" in error["message"]
    async with router.http.post("/v1/messages", json={"model": "x"}) as response:
        assert (await response.json())["type"] == "error"


@pytest.mark.parametrize(
    ("body", "status"), [(b"", 422), (b"[1]", 422), (b"{", 422), (b'{"model": "absent"}', 404), (b"\xff", 422)]
)
async def test_bad_calls_are_refused(start_router: StartRouter, body: bytes, status: int) -> None:
    router = await start_router(1)
    async with router.http.post("/v1/chat/completions", data=body) as response:
        assert response.status == status, await response.text()
        assert "message" in (await response.json())["error"]
    assert not router.engines[0].received


async def test_a_large_prompt_passes_and_one_beyond_the_bound_is_refused(start_router: StartRouter) -> None:
    router = await start_router(1, max_body_bytes=3_000_000)
    for size, status in ((2_900_000, 200), (3_100_000, 413)):
        body = io.BytesIO(b'{"model": "tiny", "prompt": "%s"}' % (b"x" * size))
        async with router.http.post("/v1/completions", data=body) as response:
            assert response.status == status


async def test_models_of_all_workers_are_listed(start_router: StartRouter) -> None:
    router = await start_router(1)
    async with running_engine("other", models=("big",)) as other:
        await router.register(other)
        async with router.http.get("/v1/models") as response:
            listed = [one["id"] for one in (await response.json())["data"]]
        assert listed == ["big", "tiny"]
        async with await router.chat(model="big") as response:
            assert await response.read() == other.whole()


async def test_an_address_where_nothing_listens_is_not_registered(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.trajectory_router.worker_routes.DETECT_S", 0.2)
    router = await start_router(0)
    async with router.http.post("/workers", json={"url": f"http://127.0.0.1:{free_port()}"}) as response:
        assert response.status == 503
        assert "/v1/models" in (await response.json())["detail"]
