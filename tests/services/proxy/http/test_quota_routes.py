"""/v1/quotas: limits are set, read and deleted; errors contain the correction; actions name quotas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec
import pytest
from redis.asyncio import Redis

from services.proxy.app import create_app
from services.proxy.http import quotas as routes
from services.proxy.settings import ProxySettings
from shared.bus import backlog, keys, quotas
from shared.bus.connection import command
from shared.policy.dispatch.backlog import Backlog
from shared.policy.model.brakes import Brake
from shared.policy.model.quotas import QuotaLimits, Rate
from shared.policy.model.waiting import QuotaBacklog, TenantBacklog
from tests.services.proxy.in_process import serving
from tests.shared.bus.soon import soon

SEARCH = {"concurrency": 32, "rates": [{"limit": 10, "period_s": 1, "burst": 5}, {"limit": 50, "unit": "usd"}]}


@pytest.fixture
async def http(redis_url: str) -> AsyncIterator[aiohttp.ClientSession]:
    settings = ProxySettings.model_validate({"treadle": {"redis_url": redis_url}})
    async with serving(create_app(settings)) as url, aiohttp.ClientSession(url) as session:
        yield session


async def ask(http: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with http.request(method, path, json=body) as reply:
        return reply.status, await reply.json() if await reply.read() else None


def view(**rest: Any) -> dict[str, Any]:
    upstream = {"state": "ok", "not_before": None, "most": None, "reason": ""}
    waiting = {"weights": {}, "waiting": {}, "waiting_actions": 0, "upstream": upstream}
    return {"name": "search", "concurrency": None, "held": 0.0, "actions": 0, "rates": [], **waiting, **rest}


def without_time(found: Any) -> Any:
    """The view of a quota of which 1 can be taken now."""
    assert found.pop("next_free_at") == pytest.approx(time.time(), abs=60.0)
    return found


@pytest.mark.parametrize(
    ("brake", "state", "ahead_s", "most", "reason"),
    [
        (Brake(not_before_s=600.0, reason="HTTP 429"), "slowed", 600.0, None, "HTTP 429"),
        (Brake(most=7, peak=9, reason="HTTP 429"), "slowed", None, 7, "HTTP 429"),
        (Brake(mode="open", probe_s=300.0, reason="HTTP 500"), "open", 300.0, None, "HTTP 500"),
        (Brake(mode="open", probe_s=-1.0, reason="HTTP 500"), "half-open", None, None, "HTTP 500"),
        (Brake(mode="open", probe_s=300.0, probe="a/0/1"), "half-open", 300.0, None, ""),
        (Brake(mode="exhausted", probe_s=300.0, reason="HTTP 402"), "exhausted", 300.0, None, "HTTP 402"),
        (Brake(failures=2, reason="old"), "ok", None, None, ""),
    ],
)
def test_the_state_of_the_provider_is_shown(
    brake: Brake, state: str, ahead_s: float | None, most: int | None, reason: str
) -> None:
    """Times of the brake: seconds from now."""
    now = 1e9
    times = {name: now + at_s for name in ("not_before_s", "probe_s") if (at_s := getattr(brake, name))}
    not_before = None if ahead_s is None else now + ahead_s
    expected = {"state": state, "not_before": not_before, "most": most, "reason": reason}
    assert routes._upstream(replace(brake, **times), now).model_dump() == expected


async def test_a_brake_that_the_leader_has_published_is_read(http: aiohttp.ClientSession, valkey: Redis) -> None:
    assert (await ask(http, "PUT", "/v1/quotas/search", {"concurrency": 1}))[0] == 200
    brake = msgspec.json.encode(Brake(mode="exhausted", reason="HTTP 402"))

    async def shown() -> bool:
        await command(valkey, "HSET", keys.QUOTA_BRAKES, "search", brake)  # a leader may replace it once, as it begins
        return bool((await ask(http, "GET", "/v1/quotas/search"))[1]["upstream"]["state"] == "exhausted")

    await soon(shown)
    assert (await ask(http, "GET", "/v1/quotas"))[1]["quotas"][0]["upstream"]["reason"] in ("HTTP 402", "")


async def test_a_quota_is_set_read_and_deleted(http: aiohttp.ClientSession, valkey: Redis) -> None:
    assert await ask(http, "GET", "/v1/quotas") == (200, {"quotas": []})
    status, problem = await ask(http, "GET", "/v1/quotas/search")
    assert (status, "PUT /v1/quotas/NAME" in problem["detail"]) == (404, True)
    status, set_view = await ask(http, "PUT", "/v1/quotas/search", SEARCH)
    now = set_view["rates"][0].pop("full_at")
    assert now > 1e9, "Unix seconds: nothing is missing now"
    assert set_view["rates"][1].pop("full_at") == pytest.approx(now)
    second = {"limit": 10.0, "period_s": 1.0, "burst": 5.0, "unit": "", "taken": 0.0, "free": 5.0}
    money = {"limit": 50.0, "period_s": None, "burst": None, "unit": "usd", "taken": 0.0, "free": 50.0}
    assert (status, without_time(set_view)) == (200, view(concurrency=32.0, rates=[second, money]))
    stored = await quotas.read_quotas(valkey)
    rates = (Rate(10.0, 1.0, 5.0), Rate(50.0, unit="usd"))
    assert stored.limits == {"search": QuotaLimits((32.0,), rates)}
    paused = [{"limit": 0, "period_s": 1, "burst": 10}, {"limit": 1e-9, "period_s": 2, "burst": 1}, {"limit": 1e-320}]
    assert (await ask(http, "PUT", "/v1/quotas/search", {"rates": paused}))[0] == 200
    nothing = view(concurrency=0.0, next_free_at=None)
    assert (await ask(http, "PUT", "/v1/quotas/search", {"concurrency": 0}))[1] == nothing
    assert (await ask(http, "GET", "/v1/quotas"))[1] == {"quotas": [nothing]}
    assert await ask(http, "DELETE", "/v1/quotas/search") == (204, None)
    assert await ask(http, "DELETE", "/v1/quotas/search") == (204, None), "it is safe to repeat"
    assert (await ask(http, "GET", "/v1/quotas/search"))[0] == 404


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("search", {}, "a quota has `concurrency`, `rates` or both"),
        ("search", {"rates": []}, "a quota has `concurrency`, `rates` or both"),
        ("search", {"concurrency": -1}, "concurrency: must be at least 0"),
        ("search", {"concurrency": "2"}, "concurrency"),
        ("search", {"rates": [{"limit": -1}]}, "must be at least 0"),
        ("search", {"rates": [{"limit": 1, "period_s": 0}]}, "period_s: must be greater than 0"),
        ("search", {"rates": [{"limit": 1, "period_s": 1, "burst": -1}]}, "burst: must be at least 0"),
        ("search", {"rates": [{"limit": 1, "period_s": 1}, {"limit": 2, "period_s": 1}]}, "the same `period_s`"),
        ("search", {"rates": [{"limit": 1, "per": 1}]}, "unknown field `per`"),
        ("search", {"rates": [{"limit": 1e-320, "period_s": 1, "burst": 10}]}, "at least 1e-09, or 0 for no refill"),
        ("search", {"rates": [{"limit": 0.9e-7, "period_s": 1000, "burst": 1}]}, "at least 1e-07, or 0"),
        ("search", {"rates": [{"limit": 1, "period_s": n} for n in range(1, 10)]}, "at most 8"),
        ("search", {"rates": [{"limit": 1, "unit": "x\x1b[31m"}]}, "rates[0].unit: must be printable text without"),
        ("search", {"rates": [{"limit": 1, "unit": "usd\n"}]}, "such as usd or tokens"),
        ("search", {"rates": [{"limit": 1, "unit": "\x9b31m"}]}, "without control characters"),
        ("search", {"rates": [{"limit": 1, "unit": "\u202eusd"}]}, "without control characters"),
        ("search", {"rates": [{"limit": 1, "unit": "u" * 33}]}, "rates[0].unit"),
        ("a%20b", {"concurrency": 1}, "quota"),
        ("search", {"concurrency": 1, "weights": {"ada": 0}}, "must be greater than 0"),
        ("search", {"concurrency": 1, "weights": {"a b": 1}}, "weights"),
        ("search", {"weights": {"ada": 1}}, "a quota has `concurrency`, `rates` or both"),
    ],
)
async def test_a_wrong_quota_is_rejected_with_the_correction(
    http: aiohttp.ClientSession, path: str, body: Mapping[str, Any], words: str
) -> None:
    status, problem = await ask(http, "PUT", f"/v1/quotas/{path}", body)
    assert status == 422
    assert words in str(problem["detail"])
    assert await ask(http, "GET", "/v1/quotas") == (200, {"quotas": []})


async def test_a_unit_is_printable_text(http: aiohttp.ClientSession) -> None:
    units = ["US $ / 1k", "\N{EURO SIGN}", "\N{CJK UNIFIED IDEOGRAPH-5206}", "u" * 32]
    rates = [{"limit": 1, "period_s": n + 1, "unit": unit} for n, unit in enumerate(units)]
    status, found = await ask(http, "PUT", "/v1/quotas/search", {"rates": rates})
    assert (status, [rate["unit"] for rate in found["rates"]]) == (200, units)


async def test_a_quota_of_a_former_release_is_readable(http: aiohttp.ClientSession, valkey: Redis) -> None:
    unit = "x\x1b[31m" * 10
    await quotas.set_quota(valkey, "old", QuotaLimits((), (Rate(5.0, unit=unit),)))
    assert (await ask(http, "GET", "/v1/quotas/old"))[1]["rates"][0]["unit"] == unit
    assert (await ask(http, "GET", "/v1/quotas"))[0] == 200


async def test_the_number_of_quotas_is_bounded(http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MOST_QUOTAS", 3)
    puts = [ask(http, "PUT", f"/v1/quotas/{number}", {"concurrency": 1}) for number in range(24)]
    assert sorted(status for status, _ in await asyncio.gather(*puts)) == [200] * 3 + [422] * 21
    for quota in (await ask(http, "GET", "/v1/quotas"))[1]["quotas"][1:]:
        await ask(http, "DELETE", f"/v1/quotas/{quota['name']}")
    monkeypatch.setattr(routes, "MOST_QUOTAS", 2)
    assert (await ask(http, "PUT", "/v1/quotas/search", {"concurrency": 1}))[0] == 200
    status, problem = await ask(http, "PUT", "/v1/quotas/judge", {"concurrency": 1})
    assert (status, "DELETE /v1/quotas/NAME" in problem["detail"]) == (422, True), problem
    assert (await ask(http, "PUT", "/v1/quotas/search", {"concurrency": 2}))[0] == 200, "a known one can be changed"


async def test_weights_and_waiting_work_are_shown(http: aiohttp.ClientSession, valkey: Redis) -> None:
    limits = {"concurrency": 2, "weights": {"ada": 2, "bob": 0.5}}
    assert (await ask(http, "PUT", "/v1/quotas/search", limits))[1]["weights"] == {"ada": 2.0, "bob": 0.5}
    assert (await quotas.read_quotas(valkey)).limits["search"].weights == {"ada": 2.0, "bob": 0.5}
    await soon(lambda: valkey.hexists("backlog", "quotas"))
    epoch = int(await command(valkey, "GET", "epoch:dispatcher"))
    free_s = time.time() + 1000.0
    waiting = {"search": QuotaBacklog({"ada": TenantBacklog(3, 4.5)}, 5, free_s, 2.0), "old": QuotaBacklog()}
    await backlog.publish_backlog(valkey, epoch, Backlog(quotas=waiting))
    (found,) = (await ask(http, "GET", "/v1/quotas"))[1]["quotas"]
    assert found == (await ask(http, "GET", "/v1/quotas/search"))[1]
    assert (found["waiting"], found["waiting_actions"]) == ({"ada": {"actions": 3, "amount": 4.5}}, 5)
    assert found["next_free_at"] == pytest.approx(free_s)


@pytest.mark.parametrize(
    "taken",
    [
        {"search": 0},
        {"search": -1},
        {"search": "1"},
        {"search": "learnt"},
        {"a b": 1},
        {"search": 1e10},
        {f"q{number}": 1 for number in range(9)},
    ],
)
@pytest.mark.parametrize("path", ["/v1/actions", "/v1/tasks/judged"])
async def test_wrong_amounts_are_rejected(http: aiohttp.ClientSession, path: str, taken: Mapping[str, Any]) -> None:
    work = {"kind": "noop", "quotas": taken}
    method, body = ("POST", work) if path == "/v1/actions" else ("PUT", {"stages": [{"name": "a", **work}]})
    status, problem = await ask(http, method, path, body)
    assert (status, "quotas" in problem["detail"]) == (422, True), problem
