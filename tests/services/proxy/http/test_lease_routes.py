"""/v1/acquire and /v1/leases: granted, refused in time, renewed, released once, and expired by the store's clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from redis.asyncio import Redis

from services.proxy.app import create_app
from services.proxy.settings import ProxySettings
from shared.bus.connection import command
from shared.bus.quotas import read_quotas
from tests.services.proxy.in_process import serving

ONE = {"concurrency": 1}
LATE_S = 30
Json = dict[str, Any]


@pytest.fixture(params=["the leader", "another replica"])
async def http(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A session with the leader, which decides about its own callers' leases at once, and with a replica beside it."""
    settings = ProxySettings.model_validate({"treadle": {"redis_url": redis_url}})
    leader = create_app(settings)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(leader))
        async with asyncio.timeout(LATE_S):
            while leader.state.proxy.leases._waiters.leader is None:  # noqa: ASYNC110  # a flag
                await asyncio.sleep(0.01)
        if request.param == "another replica":
            url = await stack.enter_async_context(serving(create_app(settings)))
        yield await stack.enter_async_context(aiohttp.ClientSession(url))


async def ask(http: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> tuple[int, Json]:
    async with asyncio.timeout(LATE_S), http.request(method, path, json=body) as reply:
        return reply.status, await reply.json(content_type=None)


async def limit(http: aiohttp.ClientSession, limits: Json, name: str = "search") -> None:
    assert (await ask(http, "PUT", f"/v1/quotas/{name}", limits))[0] == 200


async def acquire(http: aiohttp.ClientSession, **fields: Any) -> tuple[int, Json]:
    return await ask(http, "POST", "/v1/acquire", {"quotas": {"search": 1}, "wait_s": 5, **fields})


async def release(http: aiohttp.ClientSession, lease: Json, **fields: Any) -> tuple[int, str]:
    body = {"fence": lease["fence"], **fields}
    verb = "settle" if "used" in fields else "release"
    status, answer = await ask(http, "POST", f"/v1/leases/{lease['lease']}/{verb}", body)
    return status, str(answer.get("state") or answer["type"].rpartition("/")[2])


async def state(http: aiohttp.ClientSession, lease: Json) -> str:
    return str((await ask(http, "GET", f"/v1/leases/{lease['lease']}"))[1].get("state"))


async def held(valkey: Redis) -> int:
    return len((await read_quotas(valkey)).holds)


async def until_none_is_held(valkey: Redis) -> None:
    async with asyncio.timeout(LATE_S):
        while await held(valkey) or await command(valkey, "XLEN", "actions"):  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.02)


async def test_a_lease_is_held_until_it_is_released_once(http: aiohttp.ClientSession, valkey: Redis) -> None:
    await limit(http, ONE)
    status, first = await acquire(http, ttl_s=30)
    assert status == 200, first
    assert 29 < first["expires_in_s"] <= 30
    assert (await state(http, first), await held(valkey)) == ("held", 1)

    waiting = asyncio.ensure_future(acquire(http))
    await asyncio.sleep(0.3)
    assert not waiting.done(), "the slot is taken"
    assert await release(http, {**first, "fence": first["fence"] + 1}) == (409, "fenced")
    assert await release(http, first) == (200, "released")
    status, second = await waiting
    assert (status, second["fence"] > first["fence"]) == (200, True)
    assert await release(http, first) == (200, "released"), "repeated"
    assert await release(http, second) == (200, "released")
    await until_none_is_held(valkey)
    assert await state(http, second) == "released"
    assert await release(http, second) == (200, "released"), "repeated after its action was answered"


async def test_a_refusal_has_the_time_at_which_a_rate_is_refilled(http: aiohttp.ClientSession) -> None:
    await limit(http, {"rates": [{"limit": 1, "period_s": 40, "burst": 1}]})
    await release(http, (await acquire(http))[1])
    began = time.monotonic()
    async with http.post("/v1/acquire", json={"quotas": {"search": 1}, "wait_s": 20}) as reply:
        problem, headers = await reply.json(content_type=None), reply.headers
    assert time.monotonic() - began < 5, "it is refused at once: the refill comes after the deadline"
    assert (reply.status, problem["type"].rpartition("/")[2]) == (429, "quota-taken")
    assert 30 < problem["retry_after_s"] <= 40
    assert 0 <= int(headers["Retry-After"]) - problem["retry_after_s"] < 1, "rounded up"
    assert headers["RateLimit-Policy"] == '"search/40s";q=1;w=40'
    assert headers["RateLimit"].startswith('"search/40s";r=0;t=')


async def test_a_long_period_has_no_exponent_in_headers(http: aiohttp.ClientSession) -> None:
    await limit(http, {"rates": [{"limit": 240, "period_s": 24 * 86400}]})
    async with http.post("/v1/acquire", json={"quotas": {"search": 1}, "wait_s": 5}) as reply:
        assert reply.headers["RateLimit-Policy"] == '"search/2073600s";q=240;w=2073600'


async def test_a_retry_comes_after_those_who_wait(http: aiohttp.ClientSession) -> None:
    await limit(http, {"rates": [{"limit": 1, "period_s": 40, "burst": 1}]})
    await release(http, (await acquire(http))[1])
    waiting = [asyncio.ensure_future(acquire(http, wait_s=600)) for _ in range(3)]
    async with asyncio.timeout(20):
        while (await ask(http, "GET", "/v1/quotas/search"))[1]["waiting_actions"] < 3:  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.05)
    status, problem = await acquire(http, wait_s=20)
    assert status == 429
    assert 150 < problem["retry_after_s"] <= 160, "the fourth refill, not the first"
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_refusal_of_a_learned_amount_has_the_time_at_which_it_is_refilled(http: aiohttp.ClientSession) -> None:
    await limit(http, {"rates": [{"limit": 1000, "period_s": 60}]}, "tokens")
    _, lease = await acquire(http, quotas={"tokens": "learned"})
    assert await release(http, lease, used={"tokens": 900}) == (200, "released")
    began = time.monotonic()
    status, problem = await acquire(http, quotas={"tokens": "learned"}, wait_s=20)
    assert status == 429, problem
    assert time.monotonic() - began < 5, "it is refused at once: the refill comes after the deadline"
    assert 40 < problem["retry_after_s"] <= 48, "900 are reserved, and 100 are left"
    assert problem["detail"].startswith("a learned amount of tokens could not be granted within 20 s: ")
    await limit(http, {"concurrency": 0}, "tokens")
    assert (await acquire(http, quotas={"tokens": "learned"}))[0] == 409


async def test_a_budget_that_is_held_is_waited_for_and_one_that_is_spent_is_not(http: aiohttp.ClientSession) -> None:
    await limit(http, {"rates": [{"limit": 50}]}, "money")
    _, lease = await acquire(http, quotas={"money": 50})
    status, problem = await acquire(http, quotas={"money": 10}, wait_s=0)
    assert (status, problem["retry_after_s"]) == (429, 1.0), "nobody knows when it is given back"
    waiting = asyncio.ensure_future(acquire(http, quotas={"money": 10}, wait_s=20))
    await asyncio.sleep(0.3)
    assert not waiting.done(), "the holder may give back what it does not use"
    assert await release(http, lease, used={"money": 40}) == (200, "released")
    assert (await waiting)[0] == 200
    status, problem = await acquire(http, quotas={"money": 11}, wait_s=20)
    assert (status, problem["type"].rpartition("/")[2]) == (409, "quota-never"), "40 are spent"


async def test_a_refused_amount_has_no_exponent(http: aiohttp.ClientSession) -> None:
    await limit(http, {"concurrency": 2e6}, "tokens")
    await acquire(http, quotas={"tokens": 1e6})
    status, problem = await acquire(http, quotas={"tokens": 1_500_000}, wait_s=0)
    assert status == 429
    assert problem["detail"].startswith("1,500,000 of tokens could not be granted within 0 s: ")


async def test_a_refusal_for_concurrency_comes_at_the_deadline(http: aiohttp.ClientSession) -> None:
    await limit(http, ONE)
    status, lease = await acquire(http)
    assert status == 200
    began = time.monotonic()
    status, problem = await acquire(http, wait_s=1)
    assert (status, 0 < problem["retry_after_s"] <= 1) == (429, True), problem
    assert time.monotonic() - began >= 0.9, "the holder may release it until then"
    assert (await acquire(http, wait_s=0))[0] == 429
    assert await release(http, lease) == (200, "released")
    async with asyncio.timeout(LATE_S):
        while (await acquire(http, wait_s=0))[0] != 200:  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("quotas", "words"),
    [
        ({"search": 2}, "it needs 2 of the quota 'search', whose concurrency is 1"),
        ({"search": 1, "judge": 1}, "there is no quota 'judge'"),
    ],
)
async def test_what_can_never_be_given_is_refused_with_the_reason(
    http: aiohttp.ClientSession, quotas: Json, words: str
) -> None:
    await limit(http, ONE)
    await acquire(http, quotas={"search": 1})  # the leader serves leases
    status, problem = await acquire(http, quotas=quotas)
    assert (status, problem["type"].rpartition("/")[2]) == (409, "quota-never")
    assert words in problem["detail"]


async def test_waiting_callers_are_shown(http: aiohttp.ClientSession) -> None:
    await limit(http, ONE)
    _, lease = await acquire(http)
    callers = [asyncio.create_task(acquire(http, wait_s=LATE_S)) for _ in range(3)]
    async with asyncio.timeout(LATE_S):
        while (view := (await ask(http, "GET", "/v1/quotas/search"))[1])["waiting_actions"] != 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert view["waiting"] == {"default": {"actions": 3, "amount": 3.0}}
    for _ in callers:
        await release(http, lease)
        done, _ = await asyncio.wait(callers, timeout=LATE_S, return_when=asyncio.FIRST_COMPLETED)
        callers = [caller for caller in callers if caller not in done]
        ((_, lease),) = [await one for one in done]
    async with asyncio.timeout(LATE_S):
        while (await ask(http, "GET", "/v1/quotas/search"))[1]["waiting_actions"]:  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.05)


async def test_a_settlement_of_another_quota_is_rejected_and_ends_nothing(http: aiohttp.ClientSession) -> None:
    await limit(http, ONE)
    _, lease = await acquire(http)
    path = f"/v1/leases/{lease['lease']}/settle"
    status, problem = await ask(http, "POST", path, {"fence": lease["fence"], "used": {"serch": 3}})
    assert (status, problem["detail"]) == (422, "used: the lease takes nothing of 'serch'; it takes search")
    assert await state(http, lease) == "held"
    assert (await ask(http, "POST", path, {"fence": lease["fence"], "used": {"search": 1}}))[0] == 200


async def test_a_lease_ends_with_one_settlement(http: aiohttp.ClientSession, valkey: Redis) -> None:
    await limit(http, {"rates": [{"limit": 1000, "period_s": 86400}]}, "tokens")
    _, lease = await acquire(http, quotas={"tokens": 800})
    assert await release(http, lease, used={"tokens": 300}) == (200, "released")
    for _ in range(2):  # before and after its action is answered
        assert await release(http, lease, used={"tokens": 300}) == (200, "released"), "repeated"
        assert await release(http, lease) == (200, "released"), "it names no amounts"
        assert await release(http, lease, used={"tokens": 900}) == (409, "conflict")
        await until_none_is_held(valkey)
    assert await taken(http) == pytest.approx(300, abs=1), "of the first settlement"


async def test_a_settlement_after_a_release_is_rejected(http: aiohttp.ClientSession, valkey: Redis) -> None:
    await limit(http, {"rates": [{"limit": 1000, "period_s": 86400}]}, "tokens")
    _, lease = await acquire(http, quotas={"tokens": 800})
    assert await release(http, lease) == (200, "released")
    for _ in range(2):
        path, body = f"/v1/leases/{lease['lease']}/settle", {"fence": lease["fence"], "used": {"tokens": 300}}
        async with http.post(path, json=body) as reply:
            problem, kind = await reply.json(content_type=None), reply.content_type
        assert (reply.status, kind) == (409, "application/problem+json")
        words = "has ended with other amounts; its amounts cannot be changed any more"
        assert problem["detail"] == f"lease {lease['lease']} {words}"
        assert await release(http, lease) == (200, "released")
        await until_none_is_held(valkey)
    assert await taken(http) == pytest.approx(800, abs=1), "what it held"


async def test_a_lease_expires_unless_it_is_renewed(http: aiohttp.ClientSession, valkey: Redis) -> None:
    await limit(http, ONE)
    _, lease = await acquire(http, ttl_s=1)
    for _ in range(4):
        await asyncio.sleep(0.5)
        path, fence = f"/v1/leases/{lease['lease']}/renew", {"fence": lease["fence"]}
        status, renewed = await ask(http, "POST", path, fence)
        assert (status, 0 < renewed["expires_in_s"] <= 1) == (200, True), renewed
    status, following = await acquire(http, wait_s=10)
    assert status == 200, "the time of the first one is over"
    assert await release(http, lease) == (409, "lease-expired"), "a late release frees nothing"
    assert (await ask(http, "POST", path, fence))[0] == 409
    assert (await state(http, lease), await state(http, following)) == ("expired", "held")
    assert await held(valkey) == 1


async def test_a_caller_that_goes_is_granted_nothing(http: aiohttp.ClientSession, valkey: Redis) -> None:
    await limit(http, ONE)
    _, lease = await acquire(http)
    with pytest.raises(TimeoutError):
        async with http.post("/v1/acquire", json={"quotas": {"search": 1}}, timeout=aiohttp.ClientTimeout(total=0.5)):
            pass
    async with asyncio.timeout(LATE_S):
        while await command(valkey, "XLEN", "actions") > 1:  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.02)
    await release(http, lease)
    await until_none_is_held(valkey)


async def test_a_repeat_finds_its_lease_also_if_the_first_caller_had_to_wait_and_has_gone(
    http: aiohttp.ClientSession,
) -> None:
    await limit(http, ONE)
    held = (await acquire(http))[1]
    first = asyncio.create_task(acquire(http, request_id="one", wait_s=30))
    await asyncio.sleep(0.3)
    first.cancel()
    await asyncio.wait([first])
    again = asyncio.create_task(acquire(http, request_id="one", wait_s=30))
    await asyncio.sleep(0.3)
    assert not again.done()
    await release(http, held)
    status, lease = await again
    assert (status, lease["lease"] != held["lease"]) == (200, True)


async def test_a_repeat_with_the_same_request_id_returns_the_same_lease(http: aiohttp.ClientSession) -> None:
    await limit(http, ONE)
    first, second = [(await acquire(http, request_id="one"))[1] for _ in range(2)]
    assert (first["lease"], first["fence"]) == (second["lease"], second["fence"])
    assert (await acquire(http, request_id="one", ttl_s=5))[0] == 409, "another body"
    await release(http, first)
    assert (await acquire(http, request_id="one"))[0] == 409, "it has ended"


async def test_settled_amounts_are_reported_with_the_end(http: aiohttp.ClientSession, valkey: Redis) -> None:
    await limit(http, {"rates": [{"limit": 1000, "period_s": 86400}]}, "tokens")
    _, lease = await acquire(http, quotas={"tokens": 800})
    assert await taken(http) == pytest.approx(800, abs=1)
    assert await release(http, lease, used={"tokens": 712}) == (200, "released")
    await until_none_is_held(valkey)
    assert await taken(http) == pytest.approx(712, abs=1), "the surplus is given back"
    _, lease = await acquire(http, quotas={"tokens": 100})
    assert await release(http, lease, used={"tokens": 250}) == (200, "released")
    await until_none_is_held(valkey)
    assert await taken(http) == pytest.approx(962, abs=2), "what was used beyond the amount is taken"


async def test_a_rate_with_another_period_is_new_and_full(http: aiohttp.ClientSession) -> None:
    await limit(http, {"rates": [{"limit": 1000, "period_s": 86400}]}, "tokens")
    _, lease = await acquire(http, quotas={"tokens": 800})
    await release(http, lease)
    assert await taken(http) == pytest.approx(800, abs=1)
    await limit(http, {"rates": [{"limit": 1000, "period_s": 43200}]}, "tokens")
    assert await taken(http) == 0
    assert (await acquire(http, quotas={"tokens": 1000}, wait_s=5))[0] == 200


async def taken(http: aiohttp.ClientSession) -> float:
    """What `GET /v1/quotas/tokens` shows as taken. A thousand a day refill 1 in 86 s."""
    return float((await ask(http, "GET", "/v1/quotas/tokens"))[1]["rates"][0]["taken"])


@pytest.mark.parametrize("verb", ["renew", "release"])
async def test_an_unknown_lease_is_not_found(http: aiohttp.ClientSession, verb: str) -> None:
    status, problem = await ask(http, "POST", f"/v1/leases/abcdefgh/{verb}", {"fence": 1})
    assert (status, problem["kind"]) == (404, "lease")
    assert (await ask(http, "GET", "/v1/leases/abcdefgh"))[0] == 404


async def test_a_waiting_caller_sends_no_command_to_the_store(http: aiohttp.ClientSession, valkey: Redis) -> None:
    await limit(http, ONE)
    _, lease = await acquire(http, ttl_s=60)
    await asyncio.sleep(1.0)

    async def commands() -> int:
        stats = await command(valkey, "INFO", "commandstats")
        lines = [line for line in stats.decode().splitlines() if line.startswith("cmdstat_fcall:")]
        return int(lines[0].partition("calls=")[2].partition(",")[0])

    async def sent_in_s(seconds: float) -> int:
        before = await commands()
        await asyncio.sleep(seconds)
        return await commands() - before

    idle = await sent_in_s(3.0)
    waiting = [asyncio.ensure_future(acquire(http, wait_s=20)) for _ in range(30)]
    await asyncio.sleep(1.0)
    assert await sent_in_s(3.0) < idle + 15, "30 callers wait, and not even half of them ask once"
    await release(http, lease)
    for each in asyncio.as_completed(waiting):
        status, lease = await each
        assert status == 200
        await release(http, lease)
