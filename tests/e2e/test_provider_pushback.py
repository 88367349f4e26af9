"""What a provider reports, through a real mesh: no credit, too many calls, CAPTCHA pages, failures."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from shared.policy.resources.brakes import FIRST_OPEN_S, FIRST_PROBE_S, JITTER, MOST_FAILURES
from tests.e2e.upstream import CallingMesh, Upstream, calling_mesh, running_upstream
from treadle.client.answers import QuotaView
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.requests import StageTemplate, Task
from treadle.testing.servers import temporary_home

Json = dict[str, Any]
WAIT_S = 90
RETRIEVE_S = 2.0
ASKED_S = 3
CREDIT = {"error": {"message": "Your credit balance is too low to access this API."}}
CAPTCHA = "<html>Please solve this CAPTCHA</html>"


@pytest.fixture(scope="module")
def mesh() -> Iterator[CallingMesh]:
    with temporary_home() as home, calling_mesh(home, PROXY_RETRIEVE_S=str(RETRIEVE_S)) as running:
        yield running


class Provider:
    """A service that keeps when its calls arrive and when it answers, in Unix seconds."""

    def __init__(self, upstream: Upstream) -> None:
        self.url = upstream.url
        self.reply: Callable[[int], Awaitable[web.Response]] = self._works
        """Reply to a call by its number, from 0."""
        self.arrived: list[float] = []
        self.answered: list[float] = []
        upstream.answer = self._answer

    async def _works(self, _: int) -> web.Response:
        return web.json_response({})

    async def _answer(self, _: web.Request) -> web.Response:
        self.arrived.append(time.time())
        reply = await self.reply(len(self.arrived) - 1)
        self.answered.append(time.time())
        return reply


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with running_upstream() as running:
        yield Provider(running)


@pytest.fixture
async def client(mesh: CallingMesh) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(mesh.url) as client:
        yield client


@pytest.fixture
async def http(mesh: CallingMesh) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(mesh.url) as session:
        yield session


async def submitted(http: aiohttp.ClientSession, provider: Provider, quota: str, **params: Any) -> str:
    """Submit a call that takes one of the quota. Return its action."""
    body = {"kind": "http", "params": {"url": provider.url, **params}, "quotas": {quota: 1}}
    async with http.post("/v1/actions", json=body) as reply:
        view = await reply.json()
        assert reply.status in (200, 202), view
        return str(view["id"])


async def standing(http: aiohttp.ClientSession, action: str, *, wait_s: float = 0.0) -> Json:
    """The state of an action, or its answer."""
    async with http.get(f"/v1/actions/{action}?wait={wait_s}") as reply:
        return dict(await reply.json())


async def answer(http: aiohttp.ClientSession, action: str) -> Json:
    """Wait for the answer of an action."""
    async with asyncio.timeout(WAIT_S):
        while (view := await standing(http, action, wait_s=20))["state"] != "finished":
            pass
        return view


async def explained(http: aiohttp.ClientSession, action: str) -> Json:
    """Wait until an action that waits has a reason."""
    async with asyncio.timeout(WAIT_S):
        while not (view := await standing(http, action)).get("reason"):  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.1)
        return view


async def shows(client: AsyncTreadle, quota: str, true: Callable[[QuotaView], bool]) -> QuotaView:
    """Wait until the condition holds for `GET /v1/quotas/{name}`."""
    async with asyncio.timeout(WAIT_S):
        while not true(view := await client.quotas.view(quota)):  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.1)
        return view


@pytest.mark.parametrize(("status", "body", "headers"), [
    (402, {}, {"Retry-After": "3600"}), (400, CREDIT, {}),
])  # fmt: skip
async def test_work_without_credit_is_held_until_the_operator_has_paid(
    client: AsyncTreadle,
    http: aiohttp.ClientSession,
    provider: Provider,
    status: int,
    body: Json,
    headers: dict[str, str],
) -> None:
    quota, paid = f"paid-{status}", False

    async def wants_money(_: int) -> web.Response:
        return web.json_response({}) if paid else web.json_response(body, status=status, headers=headers)

    provider.reply = wants_money
    await client.quotas.set(quota, concurrency=4)
    actions = [await submitted(http, provider, quota)]
    view = await shows(client, quota, lambda view: view.upstream.state == "exhausted")
    assert view.upstream.reason == f"HTTP {status}: the account has no credit"
    assert view.upstream.not_before is not None
    actions.append(await submitted(http, provider, quota))
    await shows(client, quota, lambda view: view.waiting_actions == 2)
    for action in actions:
        held = await explained(http, action)
        assert held["state"] == "queued", "it is held, and has no answer"
        assert f"the provider of quota {quota!r} is out of credit" in held["reason"]
    assert len(provider.arrived) == 1, "no further call meanwhile"

    paid = True
    await client.quotas.set(quota, concurrency=4)

    assert [(await answer(http, action))["ended"] for action in actions] == ["ok", "ok"]
    assert len(provider.arrived) == 3
    assert provider.arrived[1] < view.upstream.not_before, "no probe is waited for"
    assert (await shows(client, quota, lambda view: view.upstream.state == "ok")).upstream.reason == ""


async def declare(client: AsyncTreadle, provider: Provider, task: str, **params: Any) -> None:
    """Declare a task that retrieves, with a quota of the same name."""
    params = {"url": f"{provider.url}/retrieve", **params}
    await client.quotas.set(task, concurrency=4)
    stage = StageTemplate(name="search", kind="search.retrieve", params=params, quotas={task: 1})
    await client.put_task(task, Task(stages=[stage]))


async def retrieved(http: aiohttp.ClientSession, task: str) -> tuple[Json, list[int]]:
    """Documents, and the statuses of all calls: it repeats a call after 503 alone, as the trainers' clients do."""
    statuses: list[int] = []
    async with asyncio.timeout(WAIT_S):
        while True:
            async with http.post(f"/t/default/{task}/retrieve", json={"query": "a"}) as reply:
                statuses.append(reply.status)
                if reply.status != 503:
                    return dict(await reply.json()), statuses
                assert int(reply.headers["Retry-After"]) >= 1


@pytest.mark.slow
async def test_a_search_continues_after_a_top_up_of_which_nobody_reports(
    client: AsyncTreadle, http: aiohttp.ClientSession, provider: Provider
) -> None:
    documents = {"result": [[{"id": "0", "contents": "text"}]]}

    async def wants_money_at_first(number: int) -> web.Response:
        return web.json_response(documents) if number else web.json_response(CREDIT, status=400)

    provider.reply = wants_money_at_first
    await declare(client, provider, "unpaid")

    found, statuses = await retrieved(http, "unpaid")

    assert found == documents
    assert statuses == [*[503] * (len(statuses) - 1), 200]
    first, probe = provider.arrived
    assert probe - first >= FIRST_PROBE_S * (1 - JITTER)


def retry_after(form: str, at_s: float) -> str:
    """The header with a time `ASKED_S` ahead, in one of the forms of RFC 9110."""
    date = format_datetime(datetime.fromtimestamp(at_s, UTC), usegmt=True)
    return {"seconds": str(ASKED_S), "date": date, "asctime": time.asctime(time.gmtime(at_s))}[form]


@pytest.mark.parametrize("form", ["seconds", "date", "asctime"])
async def test_no_call_arrives_before_the_time_for_which_the_provider_asks(
    client: AsyncTreadle, http: aiohttp.ClientSession, provider: Provider, form: str
) -> None:
    quota, asked_s, seen = f"asked-{form}", 0.0, asyncio.Event()

    async def rejects_the_first(number: int) -> web.Response:
        nonlocal asked_s
        if number:
            await seen.wait()
            return web.json_response({})
        now = time.time()
        asked_s = now + ASKED_S if form == "seconds" else math.ceil(now + ASKED_S)
        return web.json_response({}, status=429, headers={"Retry-After": retry_after(form, asked_s)})

    provider.reply = rejects_the_first
    await client.quotas.set(quota, concurrency=1)
    actions = [await submitted(http, provider, quota, method="POST") for _ in range(4)]
    view = await shows(client, quota, lambda view: view.upstream.state == "slowed")
    seen.set()

    assert (view.upstream.most, view.upstream.reason) == (1, "HTTP 429: too many calls")
    assert [(await answer(http, action))["ended"] for action in actions] == ["ok"] * 4
    assert len(provider.arrived) == 5
    assert min(provider.arrived[1:]) >= asked_s


RULES = [
    {"when": {"status": [200], "body": "(?i)captcha"}, "then": "pushed-back", "for_s": 1, "reason": "CAPTCHA"},
    {"when": {"pointer": {"path": "/result/0", "is": "empty"}}, "then": "pushed-back", "for_s": 1, "reason": "empty"},
]


async def test_a_captcha_page_is_pushback_and_never_the_answer(
    client: AsyncTreadle, http: aiohttp.ClientSession, provider: Provider
) -> None:
    seen = asyncio.Event()

    async def doubts_twice(number: int) -> web.Response:
        if number < 2:
            return web.Response(text=CAPTCHA)
        await seen.wait()
        return web.json_response({"score": 1})

    provider.reply = doubts_twice
    await client.quotas.set("doubted", concurrency=4)
    params: Json = {"method": "POST", "attempts": 1, "rules": RULES, "extract": {"pointer": "/score"}}
    action = await submitted(http, provider, "doubted", **params)
    view = await shows(client, "doubted", lambda view: view.upstream.state == "slowed")
    assert view.upstream.reason == "CAPTCHA"
    seen.set()

    found = await answer(http, action)

    assert (found["ended"], found["score"], found["output"]["json"]) == ("ok", 1.0, {"score": 1})
    assert len(provider.arrived) == 3
    for before, after in ((0, 1), (1, 2)):
        assert provider.arrived[after] - provider.answered[before] >= 1.0


@pytest.mark.parametrize("page", [CAPTCHA, '{"result": [[]]}'])
async def test_a_page_that_a_rule_of_the_task_matches_is_no_result(
    client: AsyncTreadle, http: aiohttp.ClientSession, provider: Provider, page: str
) -> None:
    documents = {"result": [[{"id": "0", "contents": "text"}]]}

    async def doubts_once(number: int) -> web.Response:
        return web.json_response(documents) if number else web.Response(text=page)

    provider.reply = doubts_once
    task = "captcha" if page == CAPTCHA else "empty"
    await declare(client, provider, task, rules=RULES)

    found, statuses = await retrieved(http, task)

    assert (found, statuses[-1], len(provider.arrived)) == (documents, 200, 2)
    assert provider.arrived[1] - provider.answered[0] >= 1.0


@pytest.mark.slow
async def test_a_failing_provider_is_asked_by_one_call_at_a_time_until_it_works(
    client: AsyncTreadle, http: aiohttp.ClientSession, provider: Provider
) -> None:
    seen = asyncio.Event()
    probes = (MOST_FAILURES, MOST_FAILURES + 1)

    async def fails_until_the_second_probe(number: int) -> web.Response:
        if number == probes[1]:
            await seen.wait()
        return web.json_response({}, status=500 if number < probes[1] else 200)

    provider.reply = fails_until_the_second_probe
    await client.quotas.set("breaks", concurrency=4)
    for _ in range(MOST_FAILURES):
        failed = await answer(http, await submitted(http, provider, "breaks", attempts=1))
        assert (failed["ended"], failed["mask"], "score" in failed) == ("upstream-failed", True, False)
    view = await shows(client, "breaks", lambda view: view.upstream.state == "open")
    assert view.upstream.reason == "HTTP 500"

    actions = [await submitted(http, provider, "breaks") for _ in range(4)]
    async with asyncio.timeout(WAIT_S):
        while len(provider.arrived) <= probes[1]:  # noqa: ASYNC110  # polls a counter
            await asyncio.sleep(0.05)
    view = await shows(client, "breaks", lambda view: view.upstream.state == "half-open")
    assert (view.held, len(provider.arrived)) == (1.0, probes[1] + 1), "one probe alone, although 4 slots are free"
    seen.set()

    assert [(await answer(http, action))["ended"] for action in actions] == ["ok"] * 4
    await shows(client, "breaks", lambda view: view.upstream.state == "ok")
    arrived, answered = provider.arrived, provider.answered
    pause_s = FIRST_OPEN_S * (1 - JITTER)
    assert arrived[probes[0]] - answered[MOST_FAILURES - 1] >= pause_s
    assert arrived[probes[1]] - answered[probes[0]] >= 2 * pause_s, "twice as long after a probe that failed"
    assert min(arrived[probes[1] + 1 :]) >= answered[probes[1]], "the others come after the answer to the probe"
    assert len(arrived) == MOST_FAILURES + 1 + len(actions)
