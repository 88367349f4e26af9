"""Reads of streams: entries of another version are skipped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from services.proxy.http.mesh import _nodes, _pool
from shared.api.mesh import NodeView
from shared.bus import functions
from shared.bus.connection import ValkeyClock, command, connect
from shared.bus.nodes import publish_bye, publish_hello
from shared.bus.streams import newest
from shared.messages.base import ENTRY
from shared.messages.nodes import NODES, Bye, Heartbeat, Hello
from shared.messages.targets import TargetSet
from shared.policy.dispatch.backlog import PoolBacklog, StuckWork


async def test_an_entry_that_cannot_be_read_hides_no_other(redis_url: str) -> None:
    bye = Bye(node="n", incarnation="1")
    async with connect(redis_url, name="test") as redis:
        for payload in (NODES.encode(bye), b'["hello.v1","not what it was"]', b"\xff", NODES.encode(bye)):
            await command(redis, "XADD", NODES.name, "*", ENTRY, payload)
        assert [message for _, message in await newest(redis, NODES, 10)] == [bye, bye]


async def test_a_node_is_shown_with_its_last_heartbeat(redis_url: str) -> None:
    hello = Hello(node="n", incarnation="1", node_class="default", capacity={"cores": 2}, kinds=["noop"])
    beats = [
        Heartbeat(node="n", incarnation="1", owned={"cores": 1}, used={"cores": 0}, cold_start_s=cold)
        for cold in ({}, {"cores": 0.25})
    ]
    async with connect(redis_url, name="test") as redis:
        clock = await ValkeyClock.measure(redis)
        proxy: Any = SimpleNamespace(redis=redis, clock=clock, settings=SimpleNamespace(node_lost_s=60.0))
        shown = []
        sent: list[Hello | Heartbeat] = [hello, *beats]
        for message in sent:
            await command(redis, "XADD", NODES.name, "*", ENTRY, NODES.encode(message))
            (view,) = await _nodes(proxy)
            shown.append((view.owned, view.cold_start_s))
    assert shown == [({}, {}), ({"cores": 1}, {}), ({"cores": 1}, {"cores": 0.25})]


async def test_a_node_is_shown_although_its_hello_has_left_the_stream(redis_url: str) -> None:
    hello = Hello(node="n", incarnation="1", node_class="default", capacity={"cores": 2}, kinds=["noop"])
    async with connect(redis_url, name="test") as redis:
        await functions.load(redis)
        proxy: Any = SimpleNamespace(
            redis=redis, clock=await ValkeyClock.measure(redis), settings=SimpleNamespace(node_lost_s=60.0)
        )
        await publish_hello(redis, hello)
        await command(redis, "DEL", NODES.name)
        (view,) = await _nodes(proxy)
        assert (view.name, view.state, view.capacity) == ("n", "ready", {"cores": 2})

        await publish_bye(redis, Bye(node="n", incarnation="1"))
        assert await _nodes(proxy) == []


def node(name: str, *, capacity: int, owned: dict[str, int], used: int) -> NodeView:
    return NodeView(
        name=name, incarnation="1", node_class="default", state="ready", capacity={"cores": capacity}, owned=owned,
        used={"cores": used}, owned_unit_s={}, used_unit_s={}, kinds=[], labels={}, last_seen_s=0.0,
    )  # fmt: skip


def test_a_pool_combines_reports_of_nodes_planner_and_leader() -> None:
    members = [
        ("cores", node("a", capacity=4, owned={"cores": 3}, used=1)),
        ("cores", node("b", capacity=2, owned={}, used=2)),
    ]
    target = TargetSet(pool="cores@default", units=5, decided_at=1.0, reason="5 do")

    view = _pool(members, target, PoolBacklog("cores@default", 7), silent=False)

    assert (view.name, view.nodes, view.capacity, view.owned, view.used) == ("cores@default", 2, 6, 5, 3)
    assert (view.target, view.reason, view.waiting, view.stuck, view.lacks) == (5, "5 do", 7, 0, [])


def test_a_pool_without_nodes_names_what_it_lacks() -> None:
    lacks = [StuckWork("noop", {"gpus": 1}, 2), StuckWork("noop", {"gpus": 8}, 1)]
    view = _pool([], None, PoolBacklog("gpus@default", 3, lacks), silent=True)

    assert (view.nodes, view.capacity, view.target, view.waiting, view.stuck) == (0, 0, None, 3, 3)
    assert view.reason == "no node is in this pool"
    assert view.lacks == [
        "no node of class 'default' offers noop with gpus=1 (2 wait)",
        "no node of class 'default' offers noop with gpus=8 (1 wait)",
    ]


def test_a_pool_names_the_quota_that_holds_its_work() -> None:
    reason = "it needs 100 of the quota 'judge-money', which gives 50 at once"
    calls = node("a", capacity=4, owned={}, used=0).model_copy(update={"capacity": {"calls": 4}})
    lacks = [StuckWork("http", {"calls": 1}, 2, {"judge-money": 100.0}, reason)]
    view = _pool([("calls", calls)], None, PoolBacklog("calls@default", 2, lacks), silent=False)

    assert view.lacks == [f"{reason} (2 wait)"], "the node offers it"
