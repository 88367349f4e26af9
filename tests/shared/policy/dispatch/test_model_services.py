"""Work that uses model services: chunks of GPUs, sharing, batching before a swap, takeovers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.service_stimuli import ServicesReported
from shared.policy.dispatch.stimuli import (
    ActionRestored,
    AttemptsEnded,
    InventoryReported,
    NodeJoined,
    NodeLost,
    PlannerChecked,
    RequestsSubmitted,
    SilenceIgnored,
    TargetReceived,
    TickPassed,
)
from shared.policy.model.chunks import Chunk, ServedModel
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import AnswerAction, Command, Grant, Revoke, SetShare, Work
from shared.policy.model.reports import Ended, HeldGrant
from shared.policy.model.results import AttemptResult
from shared.policy.resources.chunks import GPUS
from tests.shared.policy.strategies import request, work

POOL = "gpus@cpu"
WAIT_S = 5.0


def use(service: str, units: int = 1, *, duration_s: float | None = None) -> Work:
    return replace(work(POOL, {"gpus": units}), service=service, duration_s=duration_s)


def served(*degrees: int, concurrency: int = 1, gb: float = 60.0, at: Iterable[Chunk] = ()) -> ServedModel:
    return ServedModel(degrees or (1,), concurrency, gb, frozenset(at))


@dataclass
class Cluster:
    """A dispatcher, and nodes that hold what they are granted."""

    nodes: tuple[str, ...] = ("a",)
    gpus: int = 1
    services: dict[str, ServedModel] = field(default_factory=dict)
    dispatcher: Dispatcher = field(init=False)
    running: dict[str, Grant] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.dispatcher = Dispatcher(DispatchConfig(swap_wait_s=WAIT_S), specs={"gpus": GPUS})

    def join(self) -> None:
        for name in self.nodes:
            hello = NodeJoined(name, "1", "cpu", {"gpus": self.gpus}, frozenset({"run"}))
            self.handle(hello)
            self.handle(self.report(name))
            held = {
                one.action: HeldGrant(
                    one.stage, one.attempt, 1.0, one.units, service=self.service_of[one.action], numbers=one.numbers
                )
                for one in self.running.values()
                if one.node == name
            }
            self.handle(InventoryReported(name, "1", held))

    service_of: dict[str, str] = field(default_factory=dict)
    shares: dict[str, int] = field(default_factory=dict)

    def report(self, name: str, services: dict[str, ServedModel] | None = None) -> ServicesReported:
        return ServicesReported(name, "1", "gpus", services or self.services, (80.0,) * self.gpus)

    def handle(self, *stimuli: object) -> list[Grant]:
        commands: list[Command] = self.dispatcher.handle(self.now, *stimuli)  # type: ignore[arg-type]
        self.dispatcher.check()
        granted = [one for one in commands if isinstance(one, Grant)]
        self.shares |= {one.node: one.units for one in commands if isinstance(one, SetShare)}
        for one in granted:
            assert one.action not in self.running
            self.running[one.action] = one
        self.check()
        return granted

    def submit(self, name: str, stage: Work, batch: str = "") -> list[Grant]:
        self.service_of[name] = stage.service
        return self.handle(RequestsSubmitted((request(name, stage, at_s=self.now, batch=batch),)))

    def end(self, name: str) -> list[Grant]:
        one = self.running.pop(name)
        ended = Ended(name, one.node, one.attempt, one.stage, AttemptResult("ok", True), 0.0, 1.0, one.units)
        return self.handle(AttemptsEnded((ended,)))

    def tick(self, now: float) -> list[Grant]:
        self.now = now
        return self.handle(SilenceIgnored(), TickPassed())

    def check(self) -> None:
        """One service on each GPU at a time, aligned chunks, and no more holders than its concurrency."""
        places: dict[tuple[str, int], set[tuple[str, tuple[int, ...]]]] = {}
        together: Counter[tuple[str, str, tuple[int, ...]]] = Counter()
        for one in self.running.values():
            service = self.service_of[one.action]
            assert len(one.numbers) == one.units["gpus"]
            assert one.numbers[0] % len(one.numbers) == 0
            together[one.node, service, one.numbers] += 1
            for gpu in one.numbers:
                places.setdefault((one.node, gpu), set()).add((service or one.action, one.numbers))
        assert all(len(here) == 1 for here in places.values()), places
        for (_, service, _), count in together.items():
            assert not service or count <= self.services[service].concurrency


def test_work_goes_where_its_service_is_resident() -> None:
    cluster = Cluster(("a", "b"), 1, {"judge": served(), "reward": served()})
    cluster.join()
    cluster.handle(cluster.report("b", {"judge": served(at=[Chunk(0, 1)]), "reward": served()}))
    (first,) = cluster.submit("r1", use("judge"))
    assert (first.node, first.numbers) == ("b", (0,))
    (second,) = cluster.submit("r2", use("reward"))
    assert second.node == "a"
    cluster.end("r1")
    cluster.end("r2")
    (third,) = cluster.submit("r3", use("reward"))
    assert third.node == "a", "a later grant implies where a service is"


def test_a_light_load_comes_to_rest() -> None:
    """There are GPUs for all six services, so restores end. P needs blocks of two; others split such blocks."""
    services = {name: served(concurrency=8) for name in "ABCDE"} | {"P": served(2)}
    cluster, rng = Cluster(("a", "b"), 4, services), Random(1)
    cluster.join()
    restored, held = 0, dict[tuple[str, int], tuple[str, tuple[int, ...]]]()
    for number in range(500):
        restored *= number != 100
        cluster.now += 1.0
        for name in [name for name in cluster.running if rng.random() < 0.5]:
            cluster.end(name)
        name = rng.choices("ABCDEP", (10, 10, 10, 10, 10, 1))[0]
        for one in cluster.submit(f"r{number}", use(name, 2 if name == "P" else 1)):
            gpus, engine = [(one.node, gpu) for gpu in one.numbers], (cluster.service_of[one.action], one.numbers)
            restored += any(held.get(gpu) != engine for gpu in gpus)
            held |= dict.fromkeys(gpus, engine)
    assert not restored, "none since the first hundred calls"


def test_work_wakes_an_engine_before_another_one_is_loaded() -> None:
    """Three services take turns on two GPUs. Without the report, each would be loaded on each GPU."""
    services = {name: served(at=at) for name, at in (("A", ()), ("B", (Chunk(1, 1),)), ("C", (Chunk(0, 1),)))}
    services["A"] = dataclasses.replace(services["A"], asleep={Chunk(0, 1): 0.3})
    cluster = Cluster(gpus=2, services=services)
    cluster.join()
    for name, service, at_s in (("c", "C", 1.0), ("b", "B", 2.0), ("c2", "C", 3.0)):  # GPU 0 was used last
        cluster.now = at_s
        cluster.submit(name, use(service))
        cluster.end(name)
    (granted,) = cluster.submit("a", use("A"))
    assert granted.numbers == (0,)


def test_work_of_a_service_shares_its_chunk_before_another_one_is_used() -> None:
    cluster = Cluster(("a",), 2, {"judge": served(concurrency=2)})
    cluster.join()
    granted = [cluster.submit(f"r{number}", use("judge")) for number in range(5)]
    assert [one.numbers for (one,) in granted[:4]] == [(0,), (0,), (1,), (1,)]
    assert granted[4] == []
    assert [one.numbers for one in cluster.end("r0")] == [(0,)]


def test_full_gpus_still_take_work_that_joins_behind_a_head_that_waits() -> None:
    cluster = Cluster(("a",), 1, {"judge": served(concurrency=2), "reward": served()})
    cluster.join()
    cluster.submit("r0", use("judge", duration_s=9.0))
    assert cluster.submit("r1", use("reward", duration_s=1.0)) == []
    (joined,) = cluster.submit("r2", use("judge", duration_s=1.0))
    assert joined.numbers == (0,), "it ends before the head could start"
    cluster.end("r2")
    assert cluster.submit("r3", use("judge", duration_s=30.0)) == [], "it would delay the head"


def test_requests_of_one_service_are_batched_before_a_swap() -> None:
    """A B A A C A B C, with one GPU: the order of llama-swap's issue about thrash."""
    cluster = Cluster(("a",), 1, {name: served() for name in "ABC"})
    cluster.join()
    for number, service in enumerate("ABAACABC"):
        cluster.submit(f"r{number}", use(service))
    order = []
    while cluster.running:
        (name,) = cluster.running
        order.append(cluster.service_of[name])
        cluster.end(name)
    assert "".join(order) == "AAAABBCC"


def test_a_service_has_its_turn_and_then_the_next_one_also_if_all_have_waited_for_long() -> None:
    cluster = Cluster(("a",), 1, {name: served() for name in "ABC"})
    cluster.join()
    for number in range(90):
        cluster.submit(f"r{number}", use("ABC"[number % 3]))
    order, begun_s = "", 0.0
    while cluster.running:
        (name,) = cluster.running
        service = cluster.service_of[name]
        if order and order[-1] != service:
            assert cluster.now - begun_s == pytest.approx(WAIT_S, abs=0.5), "each turn is as long"
            begun_s = cluster.now
        order += service
        cluster.now += 0.5
        cluster.tick(cluster.now)
        cluster.end(name)
    turns = [len(list(group)) for _, group in itertools.groupby(order)]
    assert len(order) == 90
    assert turns[0] == 10
    assert len(turns) <= 10, order


def test_a_swap_that_evicts_nothing_in_demand_does_not_wait() -> None:
    cluster = Cluster(("a",), 1, {"A": served(gb=30.0), "B": served(gb=30.0), "C": served(gb=60.0)})
    cluster.join()
    cluster.submit("a0", use("A"))
    cluster.submit("b", use("B"))
    cluster.submit("a1", use("A"))
    assert [one.action for one in cluster.end("a0")] == ["b"], "the GPU holds both"
    cluster.submit("c", use("C"))
    assert [one.action for one in cluster.end("b")] == ["a1"]


def test_work_of_an_unknown_service_is_stuck_until_a_node_reports_it() -> None:
    cluster = Cluster(("a",), 1, {"A": served()})
    cluster.join()
    assert cluster.submit("r", use("B")) == []
    assert [one.action for one in cluster.submit("s", use("A"))] == ["s"], "nothing waits behind it"
    cluster.end("s")
    cluster.services["B"] = served()
    assert [one.action for one in cluster.handle(cluster.report("a"))] == ["r"]


def test_a_new_leader_adopts_work_on_the_chunks_that_nodes_report() -> None:
    cluster = Cluster(("a",), 4, {"A": served(1, 2, concurrency=2), "B": served(2)})
    cluster.join()
    stages = {"r0": use("A"), "r1": use("A"), "r2": use("B", 2), "r3": use("A")}
    for name, stage in stages.items():
        cluster.submit(name, stage)
    numbers = {name: one.numbers for name, one in cluster.running.items()}
    cluster.begin()
    held = tuple(request(name, stage) for name, stage in stages.items())
    cluster.handle(RequestsSubmitted(held), *(ActionRestored(name, 0, 1, (), "a") for name in stages))
    cluster.join()
    chunks = cluster.dispatcher.cluster.nodes.present["a"].resources["gpus"]
    assert {name: chunks.numbers(name) for name in stages} == numbers
    assert cluster.submit("r4", use("B", 2)) == []
    cluster.end("r2")
    assert "r4" in cluster.running


def test_the_degree_is_chosen_by_the_sum_of_completion_times() -> None:
    cluster = Cluster(("a",), 8, {"A": served(1, 2, 4, 8)})
    cluster.join()
    stage = replace(use("A", 1, duration_s=8.0), amounts=(1, 2, 4, 8), elasticity=Elasticity("power", exponent=1.0))
    cluster.submit("alone", stage)
    assert len(cluster.running["alone"].numbers) == 8
    cluster.end("alone")
    both = tuple(request(name, stage, seq=seq) for seq, name in enumerate(("one", "two")))
    cluster.service_of |= {"one": "A", "two": "A"}
    cluster.handle(RequestsSubmitted(both))
    assert sum(len(one.numbers) for one in cluster.running.values()) == 8


@pytest.mark.parametrize(("amounts", "granted"), [((1, 2), 2), ((1, 2, 4), 4), ((1,), 0)])
def test_a_degree_that_fits_nowhere_does_not_keep_the_others_from_it(amounts: tuple[int, ...], granted: int) -> None:
    nowhere = frozenset(Chunk(first, 1) for first in range(4))
    large = ServedModel((1, 2, 4), 1, 150.0, unusable=nowhere, awake_gb_by={2: 75.0, 4: 40.0})
    cluster = Cluster(("a",), 4, {"A": large, "B": served(1, 2, 4, gb=60.0)})
    cluster.join()
    cluster.submit("other", use("B", 4))
    stage = replace(use("A", 1, duration_s=8.0), amounts=amounts, elasticity=Elasticity("power", exponent=1.0))
    assert cluster.submit("large", stage if len(amounts) > 1 else use("A", 1)) == []
    cluster.end("other")
    assert len(cluster.running["large"].numbers if granted else ()) == granted
    assert ("large" in cluster.running) == bool(granted)


steps = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "end", "tick", "takeover"]), st.integers(0, 3), st.sampled_from("ABC-")
    ),
    max_size=40,
)


@given(steps)
@settings(deadline=None, max_examples=150)
def test_no_gpu_has_two_services_and_everything_is_granted(steps: list[tuple[str, int, str]]) -> None:
    services = {"A": served(1, 2, concurrency=3), "B": served(1, 4), "C": served(2, concurrency=2, gb=20.0)}
    services["-"] = served()
    cluster = Cluster(("a", "b"), 4, services)
    cluster.join()
    stages: dict[str, Work] = {}
    for number, (step, degree, service) in enumerate(steps):
        cluster.now = float(number)
        if step == "submit":
            degrees = (1, 2, 4) if service == "-" else services[service].degrees
            name = f"r{number}"
            stages[name] = use("" if service == "-" else service, degrees[degree % len(degrees)])
            cluster.submit(name, stages[name])
        elif step == "end" and cluster.running:
            name = sorted(cluster.running)[degree % len(cluster.running)]
            del stages[name]
            cluster.end(name)
        elif step == "takeover":
            restored = [ActionRestored(name, 0, one.attempt, (), one.node) for name, one in cluster.running.items()]
            cluster.begin()
            requests = tuple(request(name, stage, at_s=cluster.now) for name, stage in stages.items())
            cluster.handle(RequestsSubmitted(requests), *restored)
            cluster.join()
        else:
            cluster.tick(cluster.now)
    for at in range(200):
        if not stages:
            break
        cluster.tick(len(steps) + 10.0 * at)
        for name in list(cluster.running):
            del stages[name]
            cluster.end(name)
    assert not stages, "all work is granted in the end"


def test_services_that_fit_together_do_not_keep_a_third_one_out() -> None:
    cluster = Cluster(("a",), 1, {"A": served(gb=30.0), "B": served(gb=30.0), "C": served(gb=60.0)})
    cluster.join()
    cluster.submit("c", use("C"))
    cluster.end("c")
    backlog = itertools.count()
    for _ in range(10):
        cluster.submit(f"A{next(backlog)}", use("A"))
        cluster.submit(f"B{next(backlog)}", use("B"))
    cluster.submit("late", use("C"))
    for step in range(60):
        cluster.tick(0.5 * (step + 1))
        name = min(cluster.running)
        if name == "late":
            break
        service = cluster.service_of[name]
        cluster.submit(f"{service}{next(backlog)}", use(service))  # there is always work of both
        cluster.end(name)
    assert "late" in cluster.running
    assert cluster.now <= 2 * WAIT_S + 1.0


def test_single_gpus_with_turns_of_their_own_do_not_keep_a_larger_degree_out() -> None:
    cluster = Cluster(("a",), 2, {"A": served(), "B": served(), "C": served(2)})
    cluster.join()
    count = itertools.count()
    for service in "AABB":
        cluster.submit(f"{service}{next(count)}", use(service))
    cluster.tick(2.0)
    cluster.submit("large", use("C", 2))
    for step in range(200):
        cluster.tick(2.0 + 0.25 * step)
        if "large" in cluster.running:
            break
        name = sorted(cluster.running)[step % len(cluster.running)]
        for service in "AB":
            cluster.submit(f"{service}{next(count)}", use(service))
        cluster.end(name)
    assert "large" in cluster.running
    assert cluster.now <= 2.0 + 3 * WAIT_S


def test_a_gpu_does_not_wait_for_work_that_cannot_start() -> None:
    cluster = Cluster(("a",), 1, {"A": served(1, 8), "B": served()})
    cluster.join()
    cluster.submit("a", use("A"))
    cluster.submit("stuck", use("A", 8))
    cluster.submit("b", use("B"))
    assert [one.action for one in cluster.end("a")] == ["b"]


def test_a_call_does_not_wait_for_the_turn_of_its_own_service() -> None:
    """It would evict an engine of another degree, and no other work of the pool waits for that engine."""
    cluster = Cluster(("a",), 2, {"A": served(1, 2), "B": served(at=[Chunk(1, 1)])})
    cluster.join()
    assert [one.numbers for one in cluster.submit("a", use("A", duration_s=1.0))] == [(0,)]
    assert [one.numbers for one in cluster.submit("plain", use("", duration_s=1.0))] == [(1,)]
    cluster.submit("wide", use("A", 2, duration_s=1.0))
    cluster.submit("b", use("B", duration_s=30.0))
    assert cluster.end("plain") == []
    assert [one.action for one in cluster.end("a")] == ["wide"]


def test_a_degree_without_an_engine_does_not_set_elastic_calls_of_its_service_aside() -> None:
    unusable = frozenset(Chunk(first, 1) for first in range(4))
    cluster = Cluster(("a",), 4, {"A": ServedModel((1, 2), 1, 10.0, unusable=unusable)})
    cluster.join()
    one = use("A", 1, duration_s=8.0)
    assert cluster.submit("rigid", one) == []
    elastic = replace(one, amounts=(1, 2), elasticity=Elasticity("power", exponent=1.0))
    assert [len(grant.numbers) for grant in cluster.submit("elastic", elastic)] == [2]


def test_amounts_without_an_engine_are_not_chosen() -> None:
    """Degrees that the service lacks, or whose chunk is quarantined, are no choices of the elastic rule."""
    unusable = frozenset({Chunk(0, 4), Chunk(4, 4)})
    services = {"A": ServedModel((1, 4, 8), 1, 10.0, unusable=unusable | {Chunk(0, 8)})}
    cluster = Cluster(("a",), 8, services)
    cluster.join()
    stage = replace(use("A", 1, duration_s=8.0), amounts=(1, 2, 4, 8), elasticity=Elasticity("power", exponent=1.0))
    for name in ("one", "two"):
        cluster.submit(name, stage)
        assert len(cluster.running[name].numbers) == 1
    for name in ("one", "two"):
        cluster.end(name)
    cluster.handle(cluster.report("a", {"A": ServedModel((1, 4), 1, 10.0)}))
    cluster.submit("three", stage)
    assert len(cluster.running["three"].numbers) == 4


def test_elastic_work_waits_for_an_amount_that_its_node_has() -> None:
    cluster = Cluster(("a",), 2, {"A": served(1, 4, concurrency=3)})
    cluster.join()
    stage = replace(use("A", 1, duration_s=8.0), amounts=(1, 4), elasticity=Elasticity("power", exponent=1.0))
    for number in range(6):
        cluster.submit(f"r{number}", use("A", duration_s=5.0))
    cluster.submit("elastic", stage)
    for step in range(20):
        cluster.tick(1.0 + step)
        for name in sorted(cluster.running)[:1]:
            cluster.end(name)
    assert not cluster.dispatcher.cluster.queues.queued, "it was granted"


@pytest.mark.parametrize("batch", ["", "b"], ids=["outside of a batch", "of a batch"])
def test_work_waits_for_released_gpus_and_the_share_asks_for_them(batch: str) -> None:
    """All GPUs of both nodes are given away, and the planner's target is zero."""
    cluster = Cluster(("a", "b"), 4, {"judge": served(1, 2)})
    cluster.join()
    cluster.handle(PlannerChecked(True), TargetReceived(POOL, 0))
    assert cluster.shares == {"a": 0, "b": 0}
    for name in ("a", "b"):
        cluster.handle(dataclasses.replace(cluster.report(name), released=(0, 1, 2, 3)))
    assert cluster.submit("r1", use("judge", 2), batch) == []
    assert not cluster.dispatcher.cluster.queues.pool(POOL).stuck, "it only waits"
    (name,) = [name for name, units in cluster.shares.items() if units >= 2]
    assert cluster.handle(dataclasses.replace(cluster.report(name), released=(0, 1, 3))) == [], (
        "GPU 2 is no chunk of two"
    )
    (granted,) = cluster.handle(dataclasses.replace(cluster.report(name), released=(0, 1)))
    assert (granted.node, granted.numbers) == (name, (2, 3))


def test_a_released_gpu_gets_no_second_holder() -> None:
    cluster = Cluster(("a",), 2, {"judge": served(concurrency=4)})
    cluster.join()
    (first,) = cluster.submit("r1", use("judge"))
    cluster.handle(dataclasses.replace(cluster.report("a"), released=first.numbers))
    (second,) = cluster.submit("r2", use("judge"))
    assert second.numbers != first.numbers


def expired(cluster: Cluster, at_s: float) -> AnswerAction:
    """Return the only answer when the deadline of a waiting action comes."""
    cluster.now = at_s
    commands = cluster.dispatcher.handle(at_s, SilenceIgnored(), TickPassed())
    (answer,) = (one for one in commands if isinstance(one, AnswerAction))
    return answer


def waiting_for_a_restore(restoring: dict[str, float]) -> Cluster:
    """One action has the only GPU, where its service is restored. Another one of the service waits until 6."""
    cluster = Cluster(services={"x": served()})
    cluster.join()
    cluster.submit("first", use("x"))
    cluster.now = 1.0
    assert cluster.handle(dataclasses.replace(cluster.report("a"), restoring=restoring)) == []
    late = request("late", use("x"), seq=1, at_s=1.0, deadline_s=6.0)
    cluster.service_of["late"] = "x"
    assert cluster.handle(RequestsSubmitted((late,))) == []
    return cluster


def test_work_whose_deadline_comes_in_the_queue_during_a_restore_gets_its_expected_end() -> None:
    answer = expired(waiting_for_a_restore({"x": 20.0}), 6.0)
    assert (answer.ended, answer.retry_in_s) == ("expired", 15.0)


@pytest.mark.parametrize("restoring", [{}, {"y": 20.0}, {"x": math.nan}, {"x": math.inf}, {"x": -1.0}], ids=str)
def test_work_that_waits_for_no_restore_gets_no_time(restoring: dict[str, float]) -> None:
    assert expired(waiting_for_a_restore(restoring), 6.0).retry_in_s == 0.0


def test_work_that_is_revoked_before_its_node_has_begun_it_gets_the_time_too() -> None:
    cluster = waiting_for_a_restore({"x": 20.0})
    cluster.now = 5.9
    (grant,) = cluster.end("first")
    cluster.dispatcher.handle(6.0, SilenceIgnored(), TickPassed())
    end = Ended("late", grant.node, grant.attempt, 0, AttemptResult("cancelled"))
    (answer,) = cluster.dispatcher.handle(6.0, AttemptsEnded((end,)))
    assert isinstance(answer, AnswerAction)
    assert (answer.ended, answer.retry_in_s) == ("expired", 15.0)


def test_a_restore_that_has_ended_or_whose_node_has_gone_is_forgotten() -> None:
    for over in (lambda one: one.report("a"), lambda _: NodeLost("a", "burnt")):
        cluster = waiting_for_a_restore({"x": 20.0})
        cluster.dispatcher.handle(2.0, over(cluster))
        assert cluster.dispatcher.cluster.nodes.restores.ready_s("x", ["a"]) == 0.0


@pytest.mark.parametrize(("stage", "attempt"), [(0, 0), (7, 1), (-1, 1)])
def test_a_node_that_reports_another_attempt_of_what_it_was_granted_ends_no_term(stage: int, attempt: int) -> None:
    cluster = Cluster(("a",), 2, {"A": served()})
    cluster.join()
    cluster.submit("r", use("A"))
    cluster.dispatcher.cluster.nodes.present["a"].ask(0, cluster.now)
    for name in ("r", "unknown"):
        held = HeldGrant(stage, attempt, 1.0, {"gpus": 1}, service="A", numbers=(0,))
        cluster.dispatcher.cluster.nodes.present["a"].ask(0, cluster.now)
        cluster.handle(InventoryReported("a", "1", {name: held}))
    assert cluster.dispatcher.registry.actions["r"].allocated
    cluster.end("r")


def test_a_stage_that_an_action_does_not_have_is_revoked() -> None:
    cluster = Cluster(("a",), 2, {"A": served(2)})
    cluster.join()
    cluster.submit("r", use("A", 1))
    cluster.dispatcher.cluster.nodes.present["a"].ask(0, cluster.now)
    commands = cluster.dispatcher.handle(0.0, InventoryReported("a", "1", {"r": HeldGrant(7, 1, 1.0)}))
    assert commands == [Revoke("r", "a", 1)]


def test_a_node_that_lists_a_later_attempt_than_the_one_that_it_had_to_end_has_ended_that_one() -> None:
    """A former leader granted it. The node never has two attempts of one action."""
    cluster = Cluster(("a", "b"), 1, {"A": served()})
    cluster.join()
    (granted,) = cluster.submit("r", use("A"))
    other = cluster.dispatcher.cluster.nodes.present["b" if granted.node == "a" else "a"]
    for attempt in (1, 2):
        other.ask(0, cluster.now)
        held = HeldGrant(0, attempt, 1.0, {"gpus": 1}, service="A", numbers=(0,))
        cluster.handle(InventoryReported(other.name, "1", {"r": held}))
        if attempt == 1:
            assert list(other.orphans) == ["r"]
            cluster.running.clear()
            cluster.handle(NodeLost(granted.node, "burnt"))
    action = cluster.dispatcher.registry.actions["r"]
    assert (action.node, action.attempt, action.allocated, dict(other.orphans)) == (other.name, 2, True, {})


def test_gpus_of_a_late_load_go_to_another_service_while_its_own_actions_wait_before_it() -> None:
    """The node postpones the holder, and reports the chunk as unusable for its service meanwhile."""
    cluster = Cluster(gpus=1, services={"good": served(), "broken": served()})
    cluster.join()
    cluster.submit("b1", use("broken"))
    for name, service in (("b2", "broken"), ("g", "good")):
        cluster.now += 1.0
        assert cluster.submit(name, use(service)) == []

    def postponed() -> list[Grant]:
        one = cluster.running.pop("b1")
        result = AttemptResult("postponed", reason="its load is late", retry_in_s=1.0)
        return cluster.handle(AttemptsEnded((Ended("b1", one.node, one.attempt, one.stage, result, 0.0, 1.0, {}),)))

    cluster.now = 40.0
    late = dataclasses.replace(served(), unusable=frozenset([Chunk(0, 1)]))
    cluster.handle(cluster.report("a", {"good": served(), "broken": late}))
    assert [one.action for one in postponed()] == ["g"]
    cluster.handle(cluster.report("a"))
    assert {one.action for one in cluster.end("g")} == {"b2"}


def test_actions_of_a_late_load_come_back_to_it_if_nobody_else_waits() -> None:
    cluster = Cluster(gpus=2, services={"slow": served()})
    cluster.join()
    (first,) = cluster.submit("s", use("slow"))
    cluster.running.clear()
    late = dataclasses.replace(served(), unusable=frozenset([Chunk(first.numbers[0], 1)]))
    cluster.now = 40.0
    cluster.handle(cluster.report("a", {"slow": late}))
    result = AttemptResult("postponed", reason="its load is late", retry_in_s=1.0)
    ended = Ended("s", "a", first.attempt, first.stage, result, 0.0, 1.0, {})
    assert cluster.handle(AttemptsEnded((ended,))) == []
    cluster.now = 40.75
    loading = served(at=[Chunk(first.numbers[0], 1)])
    assert cluster.handle(cluster.report("a", {"slow": loading})) == []
    (again,) = cluster.tick(41.1)
    assert again.numbers == first.numbers, "the load has gone on there"
