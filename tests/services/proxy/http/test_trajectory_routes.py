"""Trajectories over HTTP, through the whole proxy to a simulated node and back."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from services.proxy.app import create_app
from services.proxy.settings import ProxySettings
from shared.messages.grants import Granted
from tests.services.proxy.in_process import SimulatedNode, serving
from tests.shared.bus.soon import soon

SOON_S = 20.0


class Caller:
    """A caller of the proxy, and its simulated node."""

    def __init__(self, http: aiohttp.ClientSession, node: SimulatedNode) -> None:
        self.http = http
        self.node = node

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, Any]]:
        data = body if isinstance(body, bytes) else None
        json = None if data is not None else body
        async with self.http.request(method, path, json=json, data=data, headers=headers) as reply:
            return reply.status, await reply.json()

    async def open(self, **body: Any) -> dict[str, Any]:
        status, view = await self.ask("POST", "/v1/trajectories", body)
        assert status == 201, view
        return view

    async def act(self, trajectory: str, wait: float | None = SOON_S, **body: Any) -> tuple[int, dict[str, Any]]:
        action = {"kind": "env.bash", "params": {"line": "true"}, **body}
        query = "" if wait is None else f"?wait={wait:g}"
        return await self.ask("POST", f"/v1/trajectories/{trajectory}/actions{query}", action)

    async def view(self, trajectory: str) -> dict[str, Any]:
        status, view = await self.ask("GET", f"/v1/trajectories/{trajectory}")
        assert status == 200, view
        return view

    async def answer(self, action: str) -> dict[str, Any]:
        status, answer = await self.ask("GET", f"/v1/actions/{action}?wait={SOON_S}")
        assert status == 200, answer
        return answer

    async def comes_to(self, trajectory: str, **fields: Any) -> dict[str, Any]:
        """Wait until the trajectory has these fields; return its view."""

        async def has_come() -> bool:
            return fields.items() <= (await self.view(trajectory)).items()

        await soon(has_come, within_s=60.0)
        return await self.view(trajectory)

    async def has_begun(self) -> None:
        """Wait until the node has received a grant."""

        async def granted() -> bool:
            return bool(self.node.granted)

        await soon(granted)


def at_once(grant: Granted, params: dict[str, Any]) -> dict[str, Any] | None:
    """Lines end at once, except `wait`."""
    if params.get("line") == "wait":
        return None
    return {"output": {"exit_code": 0, "output": f"{params.get('line')}\n"}}


@pytest.fixture
async def caller(redis_url: str) -> AsyncIterator[Caller]:
    settings = ProxySettings.model_validate(
        {"treadle": {"redis_url": redis_url}, "max_trajectories": 3, "max_body_bytes": 200_000, "max_wait_s": 30.0}
    )
    async with (
        SimulatedNode.up(redis_url, at_once) as node,
        serving(create_app(settings)) as url,
        aiohttp.ClientSession(url) as http,
    ):
        yield Caller(http, node)


async def test_a_trajectory_is_opened_and_shown_with_everything_it_was_opened_with(caller: Caller) -> None:
    body = {"task": "t", "group": "g7", "environment": {"memory_mb": 256, "setup": ["echo"]}, "request_id": "r"}

    view = await caller.open(**body)

    assert (view["state"], view["task"], view["group"], view["node"], view["ended_at"]) == (
        "open",
        "t",
        "g7",
        None,
        None,
    )
    assert (view["environment"]["memory_mb"], view["environment"]["setup"]) == (256, ["echo"])
    assert view["environment"]["idle_s"] == 1800.0, "defaults are shown"
    assert await caller.view(view["id"]) == view


async def test_the_id_of_a_trajectory_has_96_random_bits(caller: Caller) -> None:
    opened = [await caller.open(request_id=name) for name in ("one", "other")]

    assert all(re.fullmatch("t[0-9a-f]{24}", one["id"]) for one in opened)
    assert (await caller.view(opened[0]["id"]))["id"] == opened[0]["id"] != opened[1]["id"]


async def test_opening_again_returns_the_same_and_another_body_is_a_conflict(caller: Caller) -> None:
    first = await caller.open(request_id="r", group="a")

    assert await caller.ask("POST", "/v1/trajectories", {"request_id": "r", "group": "a"}) == (200, first)
    status, problem = await caller.ask("POST", "/v1/trajectories", {"request_id": "r", "group": "b"})
    assert (status, first["id"] in problem["detail"]) == (409, True)
    other, _ = await caller.ask(
        "POST", "/v1/trajectories", {"request_id": "r", "group": "b"}, **{"Treadle-Tenant": "x"}
    )
    assert other == 201, "another tenant's ids are its own"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"enviroment": {}}, "enviroment"),
        ({"environment": {"memory": 3}}, "memory"),
        ({"environment": {"memory_mb": 1}}, "memory_mb"),
        ({"environment": {"gpus": 1}}, "gpus"),
        ({"environment": {"lifetime_s": 0}}, "lifetime_s"),
        ({"environment": {"setup": ["x" * 70_000]}}, "upload"),
        (b"{", "JSON"),
    ],
)
async def test_an_invalid_body_opens_no_trajectory(caller: Caller, body: Any, message: str) -> None:
    status, problem = await caller.ask("POST", "/v1/trajectories", body)

    assert (status, message in problem["detail"]) == (422, True), problem
    assert (await caller.ask("GET", "/v1/trajectories"))[1] == {"trajectories": []}


async def test_a_body_beyond_all_measure_is_refused(caller: Caller) -> None:
    assert (await caller.ask("POST", "/v1/trajectories", {"group": "x" * 300_000}))[0] == 413


async def test_no_more_than_the_bound_are_open(caller: Caller) -> None:
    views = [await caller.open() for _ in range(3)]

    async with caller.http.post("/v1/trajectories", json={}) as reply:
        assert (reply.status, int(reply.headers["retry-after"]) >= 1) == (503, True)
    await caller.ask("DELETE", f"/v1/trajectories/{views[0]['id']}")
    await caller.open()


async def test_lists_show_the_newest_first_by_state(caller: Caller) -> None:
    ids = [(await caller.open())["id"] for _ in range(3)]
    await caller.ask("DELETE", f"/v1/trajectories/{ids[1]}")

    async def shown(query: str) -> list[str]:
        status, body = await caller.ask("GET", f"/v1/trajectories{query}")
        assert status == 200, body
        return [one["id"] for one in body["trajectories"]]

    assert await shown("") == await shown("?state=open") == [ids[2], ids[0]]
    assert await shown("?limit=1") == [ids[2]]
    assert await shown("?state=closed") == [ids[1]]
    assert await shown("?state=lost") == []
    for wrong in ("?state=odd", "?limit=0", "?limit=x", "?limit=1001", "?stat=open"):
        assert (await caller.ask("GET", f"/v1/trajectories{wrong}"))[0] == 422


async def test_an_action_runs_in_the_environment_and_answers(caller: Caller) -> None:
    trajectory = (await caller.open())["id"]

    status, answer = await caller.act(trajectory, params={"line": "hello"}, units={"cores": 2}, timeout_s=9)

    assert (status, answer["ended"], answer["trajectory"]) == (200, "ok", trajectory)
    assert answer["output"] == {"exit_code": 0, "output": "hello\n"}
    (grant,) = caller.node.granted
    assert (grant.trajectory, grant.units, grant.timeout_s) == (trajectory, {"cores": 2}, 9.0)
    assert grant.environment is not None
    assert (await caller.comes_to(trajectory, node="n"))["active_at"] >= answer["arrived_at"] - 0.001


async def test_actions_run_one_at_a_time_in_the_order_they_came(caller: Caller) -> None:
    trajectory = (await caller.open())["id"]
    ids = [(await caller.act(trajectory, wait=None, params={"line": line}))[1]["id"] for line in ("wait", "b", "c")]

    await caller.has_begun()
    assert (await caller.ask("GET", f"/v1/actions/{ids[1]}"))[1]["state"] == "queued"
    await caller.node.end(ids[0])
    for action in ids:
        assert (await caller.answer(action))["ended"] == "ok"
    assert [one.action for one in caller.node.granted] == ids
    assert [one.environment is not None for one in caller.node.granted] == [True, False, False]


async def test_sending_an_action_again_returns_its_first_answer(caller: Caller) -> None:
    trajectory, other = (await caller.open())["id"], (await caller.open())["id"]
    first = await caller.act(trajectory, request_id="r")

    assert await caller.act(trajectory, request_id="r") == first
    assert (await caller.act(trajectory, request_id="r", params={"line": "other"}))[0] == 409
    assert (await caller.act(other, request_id="r"))[1]["id"] != first[1]["id"], "ids are a trajectory's own"
    assert len(caller.node.granted) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"kind": "code.run"}, "env.bash"),
        ({"params": {"lin": "x"}}, "lin"),
        ({"params": {}}, "line"),
        ({"units": {"cores": 0}}, "core"),
        ({"units": {"gpus": 1}}, "env.bash needs a core; its `units` are {'gpus': 1}"),
        ({"units": {"gpus": {"any_of": [1, 2]}}}, "env.bash needs a core"),
        ({"units": {"cores": 1, "gpus": {"any_of": [1, 2]}}}, "a set of amounts is for cores alone"),
        ({"kind": "model.score"}, "unknown kind 'model.score'; in a trajectory there are env.exec"),
        ({"kind": "cuda.kernel"}, "unknown kind 'cuda.kernel'; in a trajectory there are env.exec"),
        ({"units": {"cores": [4, 2]}}, "fewest"),
        ({"elasticity": {"model": "magic"}}, "amdahl"),
        ({"timeout": 3}, "timeout"),
        ({"timeout_s": 0}, "timeout_s"),
    ],
)
async def test_an_invalid_action_is_refused(caller: Caller, body: dict[str, Any], message: str) -> None:
    trajectory = (await caller.open())["id"]

    status, problem = await caller.act(trajectory, **body)

    assert (status, message in problem["detail"]) == (422, True), problem
    assert caller.node.granted == []


async def test_an_action_of_a_missing_trajectory_is_rejected(caller: Caller) -> None:
    for name in ("t0123456789abcdef", "b0", "t" * 300):
        status, problem = await caller.act(name)
        assert (status, problem["kind"]) == (404, "trajectory")
        assert (await caller.ask("GET", f"/v1/trajectories/{name}"))[0] == 404
        assert (await caller.ask("DELETE", f"/v1/trajectories/{name}"))[0] == 404


async def test_closing_ends_the_environment_and_stays_reported(caller: Caller) -> None:
    trajectory = (await caller.open())["id"]
    await caller.act(trajectory)

    status, view = await caller.ask("DELETE", f"/v1/trajectories/{trajectory}")
    assert (status, view["state"], view["reason"]) == (200, "closed", "its trainer has closed it")
    assert (await caller.ask("DELETE", f"/v1/trajectories/{trajectory}"))[0] == 200
    status, problem = await caller.act(trajectory)
    assert (status, problem["detail"]) == (409, f"trajectory {trajectory} is closed: its trainer has closed it")

    async def gone() -> bool:
        return not caller.node.environments

    await soon(gone)


async def test_closing_while_one_runs_and_one_waits_cancels_both(caller: Caller) -> None:
    trajectory = (await caller.open())["id"]
    ids = [(await caller.act(trajectory, wait=None, params={"line": "wait"}))[1]["id"] for _ in range(2)]

    await caller.ask("DELETE", f"/v1/trajectories/{trajectory}")

    ends = [(await caller.answer(action)) for action in ids]
    assert [(one["ended"], one["mask"]) for one in ends] == [("cancelled", True)] * 2


async def test_an_environment_that_dies_is_reported_as_lost(caller: Caller) -> None:
    trajectory = (await caller.open())["id"]
    await caller.act(trajectory)

    await caller.node.lose(trajectory)

    view = await caller.comes_to(trajectory, state="lost")
    assert (view["reason"], view["ended_at"] is not None, view["node"]) == ("it was killed", True, "n")
    status, problem = await caller.act(trajectory)
    assert (status, problem["detail"]) == (409, f"trajectory {trajectory} is lost: it was killed")


async def test_waiting_actions_of_a_dead_environment_are_answered_as_lost(caller: Caller) -> None:
    trajectory = (await caller.open())["id"]
    ids = [(await caller.act(trajectory, wait=None, params={"line": "wait"}))[1]["id"] for _ in range(2)]
    await caller.has_begun()

    await caller.node.end(ids[0], status="lost", passed=None, reason="it was killed")
    await caller.node.lose(trajectory)

    assert [(await caller.answer(action))["ended"] for action in ids] == ["unknown-outcome", "environment-lost"]


async def test_nodes_report_where_environments_can_be_created(caller: Caller) -> None:
    _, body = await caller.ask("GET", "/v1/nodes")

    assert [one["runtimes"] for one in body["nodes"]] == [["local"]]


async def test_an_unanswered_action_is_known_as_its_trajectorys(caller: Caller) -> None:
    trajectory = (await caller.open())["id"]
    status, standing = await caller.act(trajectory, wait=None, params={"line": "wait"})

    assert (status, standing["trajectory"]) == (202, trajectory)
    assert (await caller.ask("GET", f"/v1/actions/{standing['id']}"))[1]["trajectory"] == trajectory


@pytest.mark.slow
async def test_an_idle_trajectory_ends_after_its_idle_time(caller: Caller) -> None:
    trajectory = (await caller.open(environment={"lifetime_s": 0.5}))["id"]

    view = await caller.comes_to(trajectory, state="expired")  # the leader sweeps every ten seconds

    assert view["reason"] == "no action arrived for its whole lifetime"


# ---- priority ------------------------------------------------------------------------------------------------------


async def test_a_priority_is_shown_after_its_change(caller: Caller) -> None:
    opened = await caller.open()
    path = f"/v1/trajectories/{opened['id']}"
    assert opened["priority"] == 0.0

    for _ in range(2):
        assert await caller.ask("PATCH", path, {"priority": -60}) == (200, {**opened, "priority": -60.0})

    assert (await caller.view(opened["id"]))["priority"] == -60.0
    status, listed = await caller.ask("GET", "/v1/trajectories")
    assert (status, [one["priority"] for one in listed["trajectories"]]) == (200, [-60.0])


async def test_the_priority_of_what_is_not_open_is_not_changed(caller: Caller) -> None:
    opened = await caller.open()
    path = f"/v1/trajectories/{opened['id']}"
    await caller.ask("DELETE", path)

    status, problem = await caller.ask("PATCH", path, {"priority": 1})
    assert (status, "is closed: its trainer has closed it" in problem["detail"]) == (409, True), problem
    for unknown in ("t" + "0" * 24, "x"):
        status, problem = await caller.ask("PATCH", f"/v1/trajectories/{unknown}", {"priority": 1})
        assert (status, problem["name"]) == (404, unknown)
    assert (await caller.view(opened["id"]))["priority"] == 0.0
