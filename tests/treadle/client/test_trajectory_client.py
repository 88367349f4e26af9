"""The client's trajectories against a small proxy that fails on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from shared.runtime import errors as served
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import BadRequest, Conflict, NotFound, Unexpected
from treadle.client.requests import EnvironmentSpec, TrajectoryRequest
from treadle.client.retry import RetryPolicy

QUICK = RetryPolicy(give_up_after_s=20, first_backoff_s=0.001, max_backoff_s=0.01)
NAME = "t0123456789abcdef"
VIEW: dict[str, Any] = {
    "id": NAME, "state": "open", "reason": "", "tenant": "default", "task": None, "group": "", "request_id": None,
    "node_class": "default", "node": None, "environment": {}, "opened_at": 1.0, "active_at": 1.0, "ended_at": None,
}  # fmt: skip


class FakeProxy:
    """Server that answers the next reply of the test and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.replies: list[tuple[int, Any] | served.TreadleError] = []

    async def answer(self, request: web.Request) -> web.Response:
        raw = await request.read()
        body = msgspec.json.decode(raw) if raw else None
        self.requests.append((request.method, request.path, dict(request.query), body))
        reply = self.replies.pop(0)
        if isinstance(reply, served.TreadleError):
            return web.json_response(
                reply.problem(), status=reply.status, headers=reply.headers(), content_type="application/problem+json"
            )
        return web.json_response(reply[1], status=reply[0])


@pytest.fixture
def fake() -> FakeProxy:
    return FakeProxy()


@pytest.fixture
async def client(fake: FakeProxy) -> AsyncIterator[AsyncTreadle]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", fake.answer)
    async with (
        asyncio.timeout(30),
        TestServer(app) as server,
        AsyncTreadle(f"http://127.0.0.1:{server.port}", retry_policy=QUICK) as client,
    ):
        yield client


async def test_a_trajectory_is_opened_with_a_request_id_for_retries(client: AsyncTreadle, fake: FakeProxy) -> None:
    fake.replies = [served.Overloaded(what="full", retry_after_s=0.001), (201, VIEW)]

    view = await client.trajectories.open(TrajectoryRequest(environment=EnvironmentSpec(image="a", memory_mb=64)))

    first, second = fake.requests
    assert (view.id, view.state, first) == (NAME, "open", second)
    assert first[:2] == ("POST", "/v1/trajectories")
    assert first[3]["environment"] == {"image": "a", "memory_mb": 64}
    assert first[3]["request_id"]


async def test_a_request_id_of_the_caller_is_kept(client: AsyncTreadle, fake: FakeProxy) -> None:
    fake.replies = [(200, VIEW)]

    await client.trajectories.open(TrajectoryRequest(request_id="mine"))

    assert fake.requests[0][3]["request_id"] == "mine"


async def test_an_action_is_polled_until_it_has_an_answer(client: AsyncTreadle, fake: FakeProxy) -> None:
    waiting = {"id": "a" * 12, "state": "queued"}
    done = {**waiting, "state": "finished", "ended": "ok", "passed": True, "output": {"exit_code": 0}}
    fake.replies = [(202, waiting), (202, {**waiting, "state": "granted"}), (200, done)]

    answer = await client.trajectories.act(NAME, "env.bash", {"line": "true"}, timeout_s=5.0, units={"cores": [1, 4]})

    assert (answer.ended, answer.passed, answer.output) == ("ok", True, {"exit_code": 0})
    posted, *polled = fake.requests
    assert posted[:2] == ("POST", f"/v1/trajectories/{NAME}/actions")
    assert posted[3]["params"] == {"line": "true"}
    assert (posted[3]["timeout_s"], posted[3]["units"]) == (5.0, {"cores": [1, 4]})
    assert [one[:2] for one in polled] == [("GET", "/v1/actions/" + "a" * 12)] * 2
    assert all(float(one[2]["wait"]) > 0 for one in fake.requests)


async def test_an_action_is_retried_with_the_same_request_id(client: AsyncTreadle, fake: FakeProxy) -> None:
    done = {"id": "a" * 12, "state": "finished", "ended": "ok"}
    fake.replies = [served.Overloaded(what="full", retry_after_s=0.001), (200, done), (200, done)]

    await client.trajectories.act(NAME, "env.list")
    await client.trajectories.act(NAME, "env.list")

    first, again, other = (one[3]["request_id"] for one in fake.requests)
    assert first == again != other


async def test_an_action_in_an_ended_trajectory_raises_the_reason(client: AsyncTreadle, fake: FakeProxy) -> None:
    fake.replies = [served.Conflict(what="trajectory t is lost: it was killed")]

    with pytest.raises(Conflict, match="it was killed"):
        await client.trajectories.act(NAME, "env.list")


async def test_a_trajectory_is_viewed_and_closed(client: AsyncTreadle, fake: FakeProxy) -> None:
    closed = {**VIEW, "state": "closed", "reason": "its trainer has closed it", "ended_at": 2.0}
    fake.replies = [(200, VIEW), (200, closed), served.NotFound(kind="trajectory", name=NAME)]

    assert (await client.trajectories.view(NAME)).state == "open"
    assert (await client.trajectories.close(NAME)).state == "closed"
    with pytest.raises(NotFound):
        await client.trajectories.close(NAME)
    assert [one[0] for one in fake.requests] == ["GET", "DELETE", "DELETE"]


async def test_a_priority_is_changed(client: AsyncTreadle, fake: FakeProxy) -> None:
    fake.replies = [(200, {**VIEW, "priority": -60.0}), served.Conflict(what="trajectory t is closed: done")]

    assert (await client.trajectories.prioritize(NAME, -60.0)).priority == -60.0
    with pytest.raises(Conflict, match="closed"):
        await client.trajectories.prioritize(NAME, 1.0)
    assert fake.requests[0] == ("PATCH", f"/v1/trajectories/{NAME}", {}, {"priority": -60.0})


async def test_an_answer_that_is_no_trajectory_is_unexpected(client: AsyncTreadle, fake: FakeProxy) -> None:
    fake.replies = [(200, {"hello": "world"})]

    with pytest.raises(Unexpected, match=NAME):
        await client.trajectories.view(NAME)


@pytest.mark.parametrize("name", ["", ".", "..", "\ud800"])
async def test_a_name_that_no_path_can_hold_is_not_sent(client: AsyncTreadle, fake: FakeProxy, name: str) -> None:
    """`GET /v1/batches/..` would be `GET /v1/`, and the results of batch `..` those of `/v1/results`."""
    for call in (client.task(name), client.batch(name), client.cancel(name), client.trajectories.close(name)):
        with pytest.raises(BadRequest, match="is not a name"):
            await call
    with pytest.raises(BadRequest, match="is not a name"):
        _ = [page async for page in client.results(name)]
    assert fake.requests == []


@pytest.mark.parametrize("name", ["a#b", "a?b", "a/b", "a b", "a%20b", "ä"])
async def test_a_name_is_one_segment_of_the_path(client: AsyncTreadle, fake: FakeProxy, name: str) -> None:
    """The mesh rejects such a name. Cut at the `#`, it would be the name of another task."""
    fake.replies = [served.BadRequest(what="a name has letters and digits"), served.NotFound(kind="batch", name="b")]

    with pytest.raises(BadRequest):
        await client.put_task(name, {"stages": []})
    with pytest.raises(NotFound):
        await client.batch(name)

    assert [one[1] for one in fake.requests] == [f"/v1/tasks/{name}", f"/v1/batches/{name}"]
    assert [one[2] for one in fake.requests] == [{}, {}]
