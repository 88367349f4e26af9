"""/v1/tenants: weights are set, read and reset; errors contain the correction; the leader reads changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest
from redis.asyncio import Redis

from services.proxy.app import create_app
from services.proxy.http import tenants as routes
from services.proxy.leader.tenant_weights import TenantWeights
from services.proxy.settings import ProxySettings
from shared.bus import tenants
from shared.policy.dispatch.stimuli import WeightsReceived
from tests.services.proxy.in_process import serving


@pytest.fixture
async def http(redis_url: str) -> AsyncIterator[aiohttp.ClientSession]:
    settings = ProxySettings.model_validate({"treadle": {"redis_url": redis_url}})
    async with serving(create_app(settings)) as url, aiohttp.ClientSession(url) as session:
        yield session


async def ask(http: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with http.request(method, path, json=body) as reply:
        return reply.status, await reply.json() if await reply.read() else None


async def test_a_weight_is_set_read_and_reset(http: aiohttp.ClientSession) -> None:
    assert await ask(http, "GET", "/v1/tenants") == (200, {"tenants": []})
    assert await ask(http, "GET", "/v1/tenants/ada") == (200, {"name": "ada", "weight": 1.0})
    assert await ask(http, "PUT", "/v1/tenants/ada", {"weight": 2.5}) == (200, {"name": "ada", "weight": 2.5})
    assert await ask(http, "PUT", "/v1/tenants/bob", {"weight": 0.001}) == (200, {"name": "bob", "weight": 0.001})
    assert await ask(http, "GET", "/v1/tenants/ada") == (200, {"name": "ada", "weight": 2.5})
    both = [{"name": "ada", "weight": 2.5}, {"name": "bob", "weight": 0.001}]
    assert await ask(http, "GET", "/v1/tenants") == (200, {"tenants": both})
    assert await ask(http, "DELETE", "/v1/tenants/ada") == (204, None)
    assert await ask(http, "DELETE", "/v1/tenants/ada") == (204, None), "it is safe to repeat"
    assert await ask(http, "GET", "/v1/tenants/ada") == (200, {"name": "ada", "weight": 1.0})
    assert await ask(http, "GET", "/v1/tenants") == (200, {"tenants": both[1:]})


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("ada", {"weight": 0}, "0.001"),
        ("ada", {"weight": -1.0}, "0.001"),
        ("ada", {"weight": 1001}, "1000"),
        ("ada", {"weight": "2"}, "weight"),
        ("ada", {}, "weight"),
        ("ada", {"weight": 1, "share": 2}, "share"),
        ("a%20b", {"weight": 1}, "tenant"),
    ],
)
async def test_a_wrong_weight_is_rejected_with_the_correction(
    http: aiohttp.ClientSession, path: str, body: Mapping[str, Any], words: str
) -> None:
    status, problem = await ask(http, "PUT", f"/v1/tenants/{path}", body)
    assert status == 422
    assert words in str(problem["detail"])
    assert await ask(http, "GET", "/v1/tenants") == (200, {"tenants": []})


async def test_the_number_of_weights_is_bounded(http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MOST_WEIGHTS", 1)
    assert (await ask(http, "PUT", "/v1/tenants/ada", {"weight": 2}))[0] == 200
    status, problem = await ask(http, "PUT", "/v1/tenants/bob", {"weight": 2})
    assert (status, "DELETE /v1/tenants/NAME" in problem["detail"]) == (422, True), problem
    assert (await ask(http, "PUT", "/v1/tenants/ada", {"weight": 3}))[0] == 200, "a known one can be changed"


async def test_the_leader_gets_the_weights_at_first_and_after_each_change(valkey: Redis) -> None:
    given: list[Mapping[str, float]] = []

    class Recorder:
        def handle(self, stimulus: WeightsReceived) -> None:
            given.append(stimulus.weights)

    leader: Any = Recorder()
    weights = TenantWeights(valkey)
    await tenants.set_weight(valkey, "ada", 2.0)
    for _ in range(3):
        await weights.refresh(leader)
    assert given == [{"ada": 2.0}], "read once while nothing changes"
    await tenants.delete_weight(valkey, "ada")
    await tenants.set_weight(valkey, "bob", 3.0)
    await weights.refresh(leader)
    assert given[1:] == [{"bob": 3.0}]
