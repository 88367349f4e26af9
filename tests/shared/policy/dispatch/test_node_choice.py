"""Choices by rankings beside plain scans over all nodes; decisions with sleeping lanes beside rounds that serve all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from copy import deepcopy
from random import Random

import pytest
from msgspec.structs import replace

from shared.policy.dispatch import blocked, node_choice, scheduling_round
from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.placement import place_environment, reservation
from shared.policy.dispatch.prefetch import RECALL_S
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.stimuli import InventoryReported, NodeJoined
from shared.policy.model.formulation import Grant, Resume
from shared.policy.resources.ledger import Node, place
from shared.policy.resources.pools import Lane, Pool
from shared.store.dispatch_log import DispatchLogHeader, state_of
from tests.shared.policy.dispatch.random_history import QUOTAS, History, history
from tests.shared.policy.strategies import SPECS, request, submitted, work

SEEDS = range(6)
KINDS = frozenset({"run"})


@pytest.fixture(autouse=True)
def no_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the rankings choose among few nodes too."""
    monkeypatch.setattr(node_choice, "FEW", 0)


def scan_places(
    cluster: ClusterState, pool: Pool, lane: Lane, action: ActionState, now: float, but: AbstractSet[str] = frozenset()
) -> Iterator[Node]:
    nodes = [node for node in cluster.nodes.of(pool, lane) if node.name not in but]
    while True:
        if action.begins:
            best = place_environment(nodes, action, pool.resource, now)
        else:
            best = place(nodes, action.request.id, action.work.kind, action.units, pool.resource)
        if best is None:
            return
        yield best
        nodes = [node for node in nodes if node is not best]


def scan_most_free(cluster: ClusterState, pool: Pool, lane: Lane, but: AbstractSet[str] = frozenset()) -> int:
    nodes = [node for node in cluster.nodes.of(pool, lane) if node.ready and node.name not in but]
    return max((node.free(pool.resource) for node in nodes), default=0)


def scan_owns_less(cluster: ClusterState, pool: Pool, lane: Lane) -> bool:
    nodes = cluster.nodes.of(pool, lane)
    return any(node.limit(pool.resource) < node.capacity.get(pool.resource, 0) for node in nodes)


def scan_prefetched(
    cluster: ClusterState, pool: Pool, lane: Lane, action: ActionState, expected_s: float
) -> Node | None:
    return cluster.prefetch.place(cluster.nodes.of(pool, lane), action, expected_s)


def scan_possible(cluster: ClusterState, pool: Pool, lane: Lane, action: ActionState) -> bool:
    return any(action.could_run_on(node) for node in cluster.nodes.of(pool, lane))


def scan_reserved(
    cluster: ClusterState, pool: Pool, lane: Lane, head: ActionState, now: float
) -> tuple[float, Node | None]:
    return reservation(cluster, cluster.nodes.of(pool, lane), head, now)


SCANS = {
    "places": scan_places,
    "most_free": scan_most_free,
    "owns_less": scan_owns_less,
    "place_prefetched": scan_prefetched,
    "is_possible": scan_possible,
    "reserve_node": scan_reserved,
}


def scan_stale(cluster: ClusterState, now: float) -> list[ActionState]:
    """Prefetched actions that have waited too long, and that a node could start now or that only long work precedes."""
    stale = []
    for action in cluster.prefetch.stale_prefetched(now):
        pool = cluster.queues.pool(action.work.pool)
        elsewhere = next(scan_places(cluster, pool, pool, action, now), None)
        if elsewhere is not None or action.node not in cluster.prefetch.short:
            stale.append(action)
    return stale


def compared(made: History) -> int:
    """Compare all choices for the waiting actions. Returns the number of nodes that were found."""
    cluster, now, found = made.dispatcher.cluster, made.now, 0
    for action in list(cluster.queues.queued.values())[:25]:
        pool, lane = cluster.queues.pool(action.work.pool), action.lane
        assert lane is not None
        asked = (cluster, pool, lane, action)
        chosen = [node.name for node in node_choice.places(*asked, now)]
        assert chosen == [node.name for node in scan_places(*asked, now)]
        assert [node.name for node in node_choice.places(*asked, now, set(chosen[:2]))] == chosen[2:]
        assert node_choice.is_possible(*asked) == scan_possible(*asked)
        expected_s = cluster.durations.expect(action)
        ahead = node_choice.place_prefetched(*asked, expected_s)
        assert ahead is scan_prefetched(*asked, expected_s)
        for but in (set(), set(chosen[:2])):
            assert node_choice.most_free(cluster, pool, lane, but) == scan_most_free(cluster, pool, lane, but)
        assert node_choice.owns_less(cluster, pool, lane) == scan_owns_less(cluster, pool, lane)
        reserved = node_choice.reserve_node(*asked, now)
        assert reserved == scan_reserved(*asked, now)
        found += len(chosen) + (ahead is not None) + (reserved[1] is not None)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_rankings_choose_like_scans_of_all_nodes(seed: int) -> None:
    found = 0
    for at, made in enumerate(history(seed, nodes=12, steps=400)):
        made.dispatcher.check()
        if at % 4 == 0:
            found += compared(made)
    assert found > 100, "the history has choices to compare"


def test_recalls_are_those_of_a_scan_of_all_nodes() -> None:
    """At times after the recall of what waits: on a copy, because overdue work is no longer short from then on."""
    found = 0
    for made in (made for seed in SEEDS for made in history(seed, nodes=4, steps=300, acting=0.0)):
        for later_s in (RECALL_S, 2 * RECALL_S) if made.dispatcher.cluster.prefetch.queues else ():
            cluster = deepcopy(made.dispatcher).cluster
            recalled = list(node_choice.stale_prefetched(cluster, made.now + later_s))
            assert recalled == scan_stale(cluster, made.now + later_s)
            found += len(recalled)
    assert found > 100, "the histories have actions to recall"


def test_a_tick_chooses_a_node_once_for_each_sort_of_prefetched_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: no node has a free unit, and hundreds of actions wait in node queues."""
    dispatcher = Dispatcher(specs=SPECS)
    for at in range(8):
        dispatcher.handle(0.0, NodeJoined(f"n{at}", "1", "cpu", {"cores": 8}, KINDS, frozenset({"cores"})))
        dispatcher.handle(0.0, InventoryReported(f"n{at}", "1", {}))
    short = replace(work(timeout_s=5.0), duration_s=0.004)
    dispatcher.handle(1.0, submitted(*(request(f"r{at}", short, seq=at, at_s=1.0) for at in range(400))))
    chosen: list[str] = []
    places = node_choice.places

    def counted(cluster: ClusterState, pool: Pool, lane: Lane, action: ActionState, now: float) -> Iterator[Node]:
        chosen.append(action.request.id)
        return places(cluster, pool, lane, action, now)

    monkeypatch.setattr(node_choice, "places", counted)
    stale = len(list(dispatcher.cluster.prefetch.stale_prefetched(1.203)))
    assert stale > 100
    assert list(node_choice.stale_prefetched(dispatcher.cluster, 1.203)) == []
    assert len(chosen) == 1


@pytest.mark.parametrize(
    ("nodes", "acting", "taking", "parking"),
    [(10, 0.3, 0.0, 0.0), (3, 0.8, 0.0, 0.0), (10, 0.4, 0.5, 0.0), (3, 0.5, 0.9, 0.0), (4, 0.8, 0.3, 0.3)],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_decisions_are_those_of_a_dispatcher_that_scans_all_nodes_and_lanes(
    seed: int, nodes: int, acting: float, taking: float, parking: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same stimuli again, with plain scans, with every lane awake in every round, and with no known waits.

    Quotas have one tenant here; of several, see the next test.
    """
    made, slept, lacked = None, False, False
    tenants = ("ada",) if taking else ("ada", "bob", "cyd")
    steps = 1600 if parking else 700
    for made in history(100 + seed, nodes, steps, acting=acting, taking=taking, parking=parking, tenants=tenants):
        made.dispatcher.cluster.queues.lanes.check(made.dispatcher.cluster.queues.pools.values())
        asleep = made.dispatcher.cluster.queues.lanes.asleep
        slept = slept or bool(asleep)
        lacked = lacked or any(one.lacking for one in asleep.values())
    assert made is not None
    for name, scan in SCANS.items():
        monkeypatch.setattr(blocked if name == "reserve_node" else scheduling_round, name, scan)
    again = Dispatcher(specs=SPECS)
    for now, stimulus, commands in made.steps:
        again.cluster.queues.lanes.wake_all()
        again.cluster.elastic_waits.clear()
        assert again.handle(now, stimulus) == commands, stimulus
    assert slept, "the history has lanes that sleep"
    assert lacked == bool(taking), "the history has lanes that sleep because they lack quotas"
    given = Counter(type(one) for _, _, commands in made.steps for one in commands)
    assert given[Grant] > 100
    assert (given[Resume] > 20) == bool(parking), "the history has actions that continue after they were parked"


@pytest.mark.parametrize("seed", range(3))
def test_rounds_with_sleeping_lanes_decide_like_others_for_several_tenants(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second step again on a copy of the state before it. Turns in quotas depend on which actions rounds have
    looked at, so one round in twenty may grant another action, or one more or less.
    """
    granting = other = 0
    lacked = False
    made = History(Random(seed), acting=0.5, taking=0.9)
    for quota, limits in QUOTAS.items():
        made.give(QuotaSet(quota, limits[0]))
    for at in range(6):
        made.join(at)
    for _ in range(200):
        made.step()
        again, first = deepcopy(made.dispatcher), len(made.steps)
        made.step()
        lacked = lacked or any(one.lacking for one in made.dispatcher.cluster.queues.lanes.asleep.values())
        with monkeypatch.context() as scanning:
            for name, scan in SCANS.items():
                scanning.setattr(blocked if name == "reserve_node" else scheduling_round, name, scan)
            for now, stimulus, commands in made.steps[first:]:
                again.cluster.queues.lanes.wake_all()
                again.cluster.elastic_waits.clear()
                decided = again.handle(now, stimulus)
                granting += any(isinstance(one, Grant) for one in commands)
                if decided != commands:
                    other += 1
                    assert abs(len(decided) - len(commands)) <= 1, (stimulus, commands, decided)
                    break  # the copy has another state now
    grants = [one for _, _, commands in made.steps for one in commands if isinstance(one, Grant)]
    assert len({one.hold.tenant for one in grants if one.hold is not None}) == 3
    assert lacked, "lanes sleep because they lack quotas"
    assert granting > 40
    assert other <= granting // 20


def test_a_dispatcher_that_is_restored_from_a_log_decides_the_same() -> None:
    """Its state has no rankings; nodes and node queues report to the restored log of changes."""
    made = list(history(5, nodes=10, steps=300))[-1]
    header = DispatchLogHeader(0, 1, made.dispatcher.config, state_of(made.dispatcher))
    again = header.dispatcher(SPECS)
    before = len(made.steps)
    for _ in range(200):
        made.step()
    for now, stimulus, commands in made.steps[before:]:
        assert again.handle(now, stimulus) == commands
        again.check()
