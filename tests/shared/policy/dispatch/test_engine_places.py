"""Places of elastic calls of model services in written cases: what they may take, and how long they wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.service_stimuli import ServicesReported
from shared.policy.dispatch.stimuli import (
    AttemptsEnded,
    EstimateReceived,
    InventoryReported,
    NodeJoined,
    PlannerChecked,
    RequestsSubmitted,
    SilenceIgnored,
    Stimulus,
    TargetReceived,
    TickPassed,
)
from shared.policy.elastic.scheduling import ElasticRules, Rule
from shared.policy.model.chunks import Chunk, ServedModel
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import Grant, Work
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.chunks import GPUS
from tests.shared.policy.strategies import request, work

POOL = "gpus@cpu"
SPEED = Elasticity("amdahl", serial=0.1)
MEMORY_GB = 80.0
RESTORE_S: Mapping[int, float] = {1: 2.0, 2: 2.0, 4: 2.0, 8: 2.0}


def call(service: str, *degrees: int, duration_s: float | None, cores: int = 0) -> Work:
    units = {"gpus": degrees[0], "cores": cores} if cores else {"gpus": degrees[0]}
    made = replace(work(POOL, units, timeout_s=1000.0), service=service, duration_s=duration_s)
    return replace(made, amounts=degrees, elasticity=SPEED) if len(degrees) > 1 else made


@dataclass
class Cluster:
    """A dispatcher, and what it has granted."""

    rule: Rule | None = "priced"
    now: float = 1000.0
    dispatcher: Dispatcher = field(init=False)
    running: dict[str, tuple[float, Grant]] = field(default_factory=dict)
    """Granted action -> its end."""
    begun_s: dict[str, float] = field(default_factory=dict)
    works: dict[str, Work] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rules = ElasticRules(rule=self.rule)
        self.dispatcher = Dispatcher(DispatchConfig(elastic=rules), specs={"gpus": GPUS})

    def join(
        self,
        name: str,
        gpus: int,
        services: Mapping[str, ServedModel],
        *,
        cores: int = 0,
        memory_gb: tuple[float, ...] | None = None,
        released: tuple[int, ...] = (),
    ) -> None:
        memory_gb = (MEMORY_GB,) * gpus if memory_gb is None else memory_gb
        self.handle(
            NodeJoined(name, "1", "cpu", {"gpus": gpus, "cores": cores}, frozenset({"run"})),
            ServicesReported(name, "1", "gpus", services, memory_gb, (), released),
            InventoryReported(name, "1", {}),
        )

    def handle(self, *stimuli: Stimulus) -> list[Grant]:
        commands = self.dispatcher.handle(self.now, *stimuli)
        self.dispatcher.check()
        granted = [one for one in commands if isinstance(one, Grant)]
        for one in granted:
            single_s = self.works[one.action].duration_s or 0.0
            self.running[one.action] = (self.now + SPEED.duration(single_s, one.units["gpus"]), one)
            self.begun_s[one.action] = self.now
        return granted

    def submit(self, *works: Work, batch: str = "") -> list[Grant]:
        new = []
        for one in works:
            name = f"r{len(self.works)}"
            self.works[name] = one
            new.append(request(name, one, at_s=self.now, seq=len(self.works), batch=batch))
        return self.handle(RequestsSubmitted(tuple(new)))

    def end(self, name: str) -> list[Grant]:
        _, one = self.running.pop(name)
        ended = Ended(name, one.node, one.attempt, one.stage, AttemptResult("ok", True), 0.0, 1.0, one.units)
        return self.handle(AttemptsEnded((ended,)))

    def go_to(self, until_s: float) -> None:
        """Let actions end that are due by then, with a tick after them."""
        while self.running and (first := min((end_s, name) for name, (end_s, _) in self.running.items()))[0] <= until_s:
            self.now = max(self.now, first[0])
            self.end(first[1])
        self.now = until_s
        self.handle(SilenceIgnored(), TickPassed())


def test_a_node_that_reports_no_memory_is_granted_calls() -> None:
    """The node decides what fits: chunks that are too small are in its report of unusable ones."""
    cluster = Cluster()
    cluster.join("a", 2, {"A": ServedModel((1, 2), 1, 60.0)}, memory_gb=())
    assert len(cluster.submit(call("A", 1, 2, duration_s=4.0))) == 1


def test_calls_planned_together_share_other_resources() -> None:
    """Both calls have a chunk on the node, and only one of them has a core."""
    cluster = Cluster()
    cluster.join("a", 4, {"A": ServedModel((1, 2), 1, 60.0)}, cores=1)
    granted = cluster.submit(*[call("A", 1, 2, duration_s=4.0, cores=1)] * 2)
    assert len(granted) == 1
    assert len(cluster.end(granted[0].action)) == 1


def test_a_call_without_a_place_does_not_hold_a_search_up() -> None:
    """All GPUs that serve B are released: a plan that contains its call does not exist. Without a bound the search
    would try all orders of the others.
    """
    cluster = Cluster()
    served = {name: ServedModel((1, 2, 4), 1, 60.0, restore_s=RESTORE_S) for name in "ACDEF"}
    cluster.join("a", 8, served)
    cluster.join("b", 8, {"B": ServedModel((1, 2), 1, 60.0)}, released=tuple(range(8)))
    calls = [call(name, 1, 2, 4, duration_s=4.0) for name in "BACDEF"]
    granted = cluster.submit(*calls)
    assert {one.node for one in granted} == {"a"}


def test_a_plan_is_made_for_a_young_call_that_has_no_place_in_it() -> None:
    """The only core is in use, so the young call cannot be planned with the old one behind it."""
    cluster = Cluster()
    cluster.join("a", 3, {name: ServedModel((1, 2), 1, 60.0) for name in "AB"}, cores=1)
    kernel, _ = cluster.submit(call("", 2, duration_s=20.0), call("", 1, duration_s=1000.0, cores=1))
    assert cluster.submit(call("A", 1, 2, duration_s=4.0), batch="late") == []
    cluster.go_to(1010.0)
    cluster.handle(EstimateReceived("early", 1011.0), EstimateReceived("late", 1100.0))
    assert cluster.submit(call("B", 1, 2, duration_s=4.0, cores=1), batch="early") == []
    (granted,) = cluster.end(kernel.action)
    assert cluster.works[granted.action].service == "A"


def test_gpus_of_work_without_a_service_are_free_at_its_predicted_end() -> None:
    cluster = Cluster("paper")
    cluster.join("a", 2, {"A": ServedModel((1, 2), 1, 60.0)})
    (kernel,) = cluster.submit(call("", 1, duration_s=4.0))
    assert cluster.submit(call("A", 1, 2, duration_s=100.0)) == [], "it ends earlier on both GPUs"
    (granted,) = cluster.end(kernel.action)
    assert granted.units == {"gpus": 2}


def test_work_before_a_reserved_time_is_counted_with_its_restore() -> None:
    """A call of a fixed degree waits for both GPUs. The one that holds a GPU ends after 13 s, with its own restore."""
    cluster = Cluster()
    restored = {name: ServedModel((1, 2), 1, 60.0, restore_s={1: 8.0}) for name in "BC"}
    cluster.join("a", 2, restored | {name: ServedModel((1, 2), 1, 60.0) for name in "AD"})
    assert len(cluster.submit(call("C", 1, duration_s=5.0))) == 1
    assert cluster.submit(call("A", 2, duration_s=1.0)) == []
    assert cluster.submit(call("B", 1, duration_s=6.0)) == [], "it would end after 14 s"
    assert len(cluster.submit(call("D", 1, duration_s=6.0))) == 1


def test_an_old_call_is_not_overtaken_by_a_stream_that_is_not_planned() -> None:
    """The call prefers both GPUs, and a stream of fixed degree would keep one of them busy for ever."""
    cluster = Cluster()
    served = {"A": ServedModel((1, 2), 1, 60.0, restore_s=RESTORE_S), "B": ServedModel((1,), 8, 60.0)}
    cluster.join("a", 2, served)
    for number in range(20):
        cluster.submit(call("B", 1, duration_s=3.0))
        cluster.go_to(1000.5 + 0.5 * number)
    old, since_s = f"r{len(cluster.works)}", cluster.now
    cluster.submit(call("A", 1, 2, duration_s=50.0))
    for number in range(60):
        if old in cluster.begun_s:
            break
        cluster.submit(call("B", 1, duration_s=3.0))
        cluster.go_to(since_s + 0.5 * (number + 1))
    assert cluster.begun_s[old] - since_s <= cluster.dispatcher.config.swap_wait_s + 3.0


def degrees_of_single_calls(cluster: Cluster, count: int) -> list[int]:
    """Return the degrees of calls of one service that come one after the other."""
    found = []
    for _ in range(count):
        (granted,) = cluster.submit(call("A", 1, 4, duration_s=8.0))
        found.append(granted.units["gpus"])
        cluster.go_to(cluster.now + 60.0)
    return found


def test_calls_pay_for_a_better_engine_that_none_would_restore_alone() -> None:
    """With four GPUs a call takes 2.6 s instead of 8, and a restore takes 12: it pays off after a few calls."""
    served = {"A": ServedModel((1, 4), 1, 60.0, frozenset({Chunk(0, 1)}), restore_s={1: 12.0, 4: 12.0})}
    cluster = Cluster()
    cluster.join("a", 8, served)
    degrees = degrees_of_single_calls(cluster, 8)
    few = degrees.index(4)
    assert 2 <= few <= 4, degrees
    assert degrees == [1] * few + [4] * (8 - few), "nothing is restored again"


def test_without_later_calls_there_are_no_credits() -> None:
    served = {"A": ServedModel((1, 4), 1, 60.0, frozenset({Chunk(0, 1)}), restore_s={1: 12.0, 4: 12.0})}
    cluster = Cluster("paper")
    cluster.join("a", 8, served)
    assert degrees_of_single_calls(cluster, 8) == [1] * 8, "the rule of the paper considers only calls that wait"


def test_credits_are_no_reason_to_wait() -> None:
    """A degree that no chunk of the node can have collects credits, and the calls go on where they are."""
    unusable = frozenset({Chunk(0, 4), Chunk(4, 4)})
    served = {"A": ServedModel((1, 4), 1, 60.0, frozenset({Chunk(0, 1)}), unusable, restore_s={1: 12.0, 4: 12.0})}
    cluster = Cluster()
    cluster.join("a", 8, served)
    assert degrees_of_single_calls(cluster, 12) == [1] * 12


def test_degrees_beyond_a_chunk_are_not_counted() -> None:
    cluster = Cluster()
    cluster.join("a", 8, {"A": ServedModel((1, 2), 1, 60.0)})
    assert len(cluster.submit(call("A", 1, 2, 16, duration_s=4.0))) == 1


WIDE = {"A": ServedModel((2,), 1, 60.0), "B": ServedModel((1,), 1, 60.0)}
"""A is served on two GPUs only."""


@pytest.mark.parametrize(("rule", "duration_s"), [("priced", None), (None, 4.0), (None, None)])
@pytest.mark.parametrize("nodes", [1, 20], ids=["scanned", "ranked"])
def test_a_call_without_a_plan_gets_the_fewest_gpus_that_its_service_has_an_engine_for(
    rule: Rule | None, duration_s: float | None, nodes: int
) -> None:
    cluster = Cluster(rule)
    for number in range(nodes):
        cluster.join(f"n{number:02}", 2, WIDE)
    a, *behind = cluster.submit(call("A", 1, 2, duration_s=duration_s), *[call("B", 1, duration_s=4.0)] * 2)
    assert (a.action, a.numbers, a.units) == ("r0", (0, 1), {"gpus": 2})
    assert [one.action for one in (*behind, *cluster.end("r0"))] == ["r1", "r2"]


def test_a_quarantined_degree_is_not_the_fewest() -> None:
    cluster = Cluster(rule=None)
    unusable = frozenset({Chunk(0, 1), Chunk(1, 1)})
    cluster.join("a", 2, {"A": ServedModel((1, 2), 1, 60.0, unusable=unusable)})
    assert [one.numbers for one in cluster.submit(call("A", 1, 2, duration_s=4.0))] == [(0, 1)]


def test_a_call_of_unknown_elasticity_is_set_aside_if_its_fewest_gpus_have_no_engine() -> None:
    """It is never granted more than the fewest."""
    cluster = Cluster()
    cluster.join("a", 2, WIDE)
    rigid = replace(call("A", 1, 2, duration_s=4.0), elasticity=None)
    granted = cluster.submit(rigid, call("A", 1, 2, duration_s=4.0), call("B", 1, duration_s=4.0))
    assert [one.action for one in granted] == ["r1"]
    assert cluster.dispatcher.cluster.queues.pool(POOL).stuck == {"r0"}
    assert [one.action for one in cluster.end("r1")] == ["r2"]


@pytest.mark.parametrize("duration_s", [4.0, None])
@pytest.mark.parametrize("others", [0, 20], ids=["scanned", "ranked"])
def test_a_head_reserves_the_fewest_gpus_that_its_service_has_an_engine_for(
    duration_s: float | None, others: int
) -> None:
    """It waits for both GPUs, so a short call may use the free one meanwhile."""
    cluster = Cluster()
    cluster.join("a", 2, WIDE)
    for number in range(others):
        cluster.join(f"n{number:02}", 1, {})
    assert len(cluster.submit(call("B", 1, duration_s=300.0))) == 1
    granted = cluster.submit(call("A", 1, 2, duration_s=duration_s), call("B", 1, duration_s=1.0))
    assert [one.action for one in granted] == ["r2"]
    assert cluster.submit(call("B", 1, duration_s=1000.0)) == []
    cluster.go_to(cluster.now + 300.0)
    assert "r1" in cluster.begun_s


def test_a_head_reserves_nothing_on_a_node_that_has_its_engine_on_more_gpus_only() -> None:
    cluster = Cluster(rule=None)
    cluster.join("a", 1, {"A": ServedModel((1,), 1, 60.0), "B": ServedModel((1,), 1, 60.0)})
    cluster.join("b", 2, WIDE)
    assert len(cluster.submit(*[call("B", 1, duration_s=300.0)] * 2)) == 2
    assert {one.node for _, one in cluster.running.values()} == {"a", "b"}
    granted = cluster.submit(call("A", 1, 2, duration_s=4.0), call("B", 1, duration_s=1000.0))
    assert [(one.action, one.node) for one in granted] == [("r3", "b")]


@pytest.mark.parametrize("duration_s", [4.0, None])
def test_a_node_owns_the_fewest_gpus_that_the_service_of_a_head_has_an_engine_for(duration_s: float | None) -> None:
    """The planner counts calls of a batch with one GPU."""
    cluster = Cluster()
    cluster.join("a", 2, WIDE)
    cluster.handle(PlannerChecked(True), TargetReceived(POOL, 1))
    assert [one.numbers for one in cluster.submit(call("A", 1, 2, duration_s=duration_s), batch="b")] == [(0, 1)]


@pytest.mark.parametrize("first", ["gpus", "cores"])
def test_degrees_of_pools_of_different_resources_are_different(first: str) -> None:
    """Two cores are no engine on two GPUs."""
    cluster = Cluster()
    cluster.join("a", 2, WIDE, cores=2)
    of_gpus = call("A", 1, 2, duration_s=4.0, cores=1)
    of_cores = replace(of_gpus, pool="cores@cpu")
    works = {"gpus": of_gpus, "cores": of_cores}
    granted = [one for name in sorted(works, key=lambda name: name != first) for one in cluster.submit(works[name])]
    assert [one.units for one in granted] == [{"gpus": 2, "cores": 1}]
    assert len(cluster.dispatcher.cluster.queues.pool("cores@cpu").stuck) == 1


@pytest.mark.parametrize(("rule", "duration_s"), [("priced", None), (None, 4.0)])
def test_a_call_without_a_plan_does_not_wait_for_the_turn_of_its_own_service(
    rule: Rule | None, duration_s: float | None
) -> None:
    """It cannot use the engine on both GPUs."""
    cluster = Cluster(rule)
    cluster.join("a", 2, {"A": ServedModel((1, 2), 1, 60.0)})
    assert [one.numbers for one in cluster.submit(call("A", 2, duration_s=4.0))] == [(0, 1)]
    cluster.end("r0")
    granted = cluster.submit(call("A", 1, 2, duration_s=duration_s), *[call("", 1, duration_s=50.0)] * 2)
    assert [one.action for one in granted] == ["r1", "r2"]
