"""`/retrieve` for the published clients of retrieval servers: SkyRL's own package, and the calls of Search-R1 and verl.

verl and Search-R1 have no package with this call alone. Theirs is {"queries": [...], "topk": 3, "return_scores": true}.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.conformance.skyrl import searched
from tests.e2e.upstream import CallingMesh, Upstream, calling_mesh, running_upstream
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.requests import QuotaRate, StageTemplate, Task
from treadle.testing.servers import temporary_home

Json = dict[str, Any]
WAIT_S = 90
LATE_S = 2.0


@pytest.fixture(scope="module")
def mesh() -> Iterator[CallingMesh]:
    with temporary_home() as home, calling_mesh(home, PROXY_RETRIEVE_S=str(LATE_S)) as running:
        yield running


def documents(query: str, body: Json) -> list[Json]:
    """Two documents about a query, as a retrieval server returns them."""
    found: list[Json] = [{"id": str(number), "contents": f'"{query}"\nText {number}.'} for number in range(2)]
    return [{"document": each, "score": 0.5} for each in found] if body["return_scores"] else found


async def server(request: web.Request) -> web.Response:
    """Search-R1's retrieval server, also in SkyRL's form of one query."""
    body = await request.json()
    queries = body["queries"] if "queries" in body else [body["query"]]
    return web.json_response({"result": [documents(query, body) for query in queries]})


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with running_upstream() as running:
        running.answer = server
        yield running


@pytest.fixture
async def client(mesh: CallingMesh) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(mesh.url) as client, asyncio.timeout(WAIT_S):
        yield client


async def declare(client: AsyncTreadle, upstream: Upstream, name: str = "retrieve", **params: Any) -> None:
    """Declare a task whose calls take one of the quota `search`. It is in force at every replica afterwards."""
    stage = StageTemplate(
        name="search",
        kind="search.retrieve",
        params={"url": f"{upstream.url}/retrieve", **params},
        quotas={"search": 1},
    )
    await client.quotas.set("search", concurrency=4, rates=[QuotaRate(limit=1000)])
    await client.put_task(name, Task(stages=[stage], budget_s=60))
    await asyncio.sleep(1.1)  # `task_registry.CACHED_S`


async def post(mesh: CallingMesh, body: Any, path: str = "/retrieve") -> tuple[int, Json, dict[str, str]]:
    async with aiohttp.ClientSession() as http, http.post(mesh.url + path, json=body) as response:
        return response.status, await response.json(content_type=None), dict(response.headers)


@pytest.mark.parametrize("form", ["queries", "query"])
async def test_skyrls_search_tool_works_unmodified(
    mesh: CallingMesh, client: AsyncTreadle, upstream: Upstream, form: str
) -> None:
    await declare(client, upstream, form=form)

    found = await asyncio.to_thread(searched, f"{mesh.url}/retrieve", "who", "  what ")

    assert found == [f'Doc 1: "{query}"\nText 0.\nDoc 2: "{query}"\nText 1.\n' for query in ("who", "what")]
    (rate,) = (await client.quotas.view("search")).rates
    assert (rate.taken > 0, len(upstream.calls)) == (True, 2)


async def test_skyrls_search_tool_waits_out_a_failing_upstream(
    mesh: CallingMesh, client: AsyncTreadle, upstream: Upstream
) -> None:
    async def fails_at_first(request: web.Request) -> web.Response:
        return web.json_response({}, status=500) if len(upstream.calls) <= 2 else await server(request)

    upstream.answer = fails_at_first
    await declare(client, upstream, attempts=1)

    (found,) = await asyncio.to_thread(searched, f"{mesh.url}/retrieve", "again", delay_s=0.01)

    assert (found[:15], len(upstream.calls)) == ('Doc 1: "again"\n', 3)


async def test_a_call_of_search_r1_and_verl(mesh: CallingMesh, client: AsyncTreadle, upstream: Upstream) -> None:
    await declare(client, upstream, "corpus", queries_a_call=2)
    queries = ["a", "b", "c", "d", "e"]
    for scores in (True, False):
        body = {"queries": queries, "topk": 3, "return_scores": scores, "unknown": 1}
        status, answer, _ = await post(mesh, body, "/t/default/corpus/retrieve")
        assert status == 200
        assert answer == {"result": [documents(query, {"return_scores": scores}) for query in queries]}
    assert len(upstream.calls) == 6, "two queries a call"


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_a_failed_upstream_is_503_and_never_an_empty_result(
    mesh: CallingMesh, client: AsyncTreadle, upstream: Upstream, status: int
) -> None:
    async def fails(request: web.Request) -> web.Response:
        return web.json_response({"result": [[]]}, status=status)

    upstream.answer = fails
    await declare(client, upstream, f"fails{status}", attempts=1)

    answered, problem, headers = await post(mesh, {"query": "a"}, f"/t/default/fails{status}/retrieve")

    assert (answered, "result" in problem) == (503, False)
    assert int(headers["Retry-After"]) >= 1


@pytest.mark.parametrize("shape", ["<html>captcha</html>", "{}", '{"result": []}', '{"result": [[{}]]}'])
async def test_an_answer_of_another_shape_is_503(
    mesh: CallingMesh, client: AsyncTreadle, upstream: Upstream, shape: str
) -> None:
    async def answers(request: web.Request) -> web.Response:
        return web.Response(text=shape)

    upstream.answer = answers
    await declare(client, upstream, "shapes", attempts=1)

    assert (await post(mesh, {"query": "a"}, "/t/default/shapes/retrieve"))[0] == 503


async def test_a_late_answer_is_503_and_its_repeat_joins_it(
    mesh: CallingMesh, client: AsyncTreadle, upstream: Upstream
) -> None:
    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(1.5 * LATE_S)
        return await server(request)

    upstream.answer = slow
    await declare(client, upstream, "slow")

    first = await post(mesh, {"query": "a"}, "/t/default/slow/retrieve")
    second = await post(mesh, {"query": "a"}, "/t/default/slow/retrieve")

    assert (first[0], "Retry-After" in first[2], second[0]) == (503, True, 200)
    assert len(upstream.calls) == 1, "it is paid once"


async def test_what_no_task_can_do_says_what_to_change(
    mesh: CallingMesh, client: AsyncTreadle, upstream: Upstream
) -> None:
    await declare(client, upstream, "known")
    await client.put_task("other", Task(stages=[StageTemplate(name="a", kind="noop")]))
    cases: list[tuple[str, Any, int, str]] = [
        ("/t/default/missing/retrieve", {"query": "a"}, 404, "PUT /v1/tasks/missing"),
        ("/t/default/other/retrieve", {"query": "a"}, 422, "it needs one stage, of kind search.retrieve"),
        ("/t/default/known/retrieve", {}, 422, '{"queries": ["..."]}'),
        ("/t/default/known/retrieve", {"queries": "a"}, 422, "queries: must be a list"),
        ("/t/default/known/retrieve", {"query": "a", "topk": 0}, 422, "topk: must be at least 1"),
        ("/t/default/a b/retrieve", {"query": "a"}, 422, "tenant and task in the path"),
    ]
    for path, body, status, text in cases:
        answered, problem, _ = await post(mesh, body, path)
        assert (answered, text in problem["detail"]) == (status, True), problem
    assert upstream.calls == []
