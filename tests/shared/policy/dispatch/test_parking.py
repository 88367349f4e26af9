"""Parking: an action that waits for something outside returns its units and gets them again in queue order."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

import pytest
from msgspec.structs import replace

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import (
    ActionCancelled,
    ActionRestored,
    AttemptParked,
    AttemptStarted,
    BatchCancelled,
    EnvironmentEndReported,
    InventoryReported,
    NodeLost,
    NodeSeen,
    ParkRequested,
    PlacementRestored,
    ResumeRequested,
    Stimulus,
    TargetReceived,
    TickPassed,
    TrajectoryClosed,
)
from shared.policy.model.formulation import (
    AnswerAction,
    AskInventory,
    Command,
    Grant,
    Park,
    Request,
    Resume,
    Revoke,
    SetShare,
)
from shared.policy.model.reports import Ended, HeldGrant
from shared.policy.model.results import AttemptResult, ExecutionStatus
from tests.shared.policy.dispatch.test_dispatch_trajectories import act, host, leading, submit
from tests.shared.policy.strategies import SPECS, joined, reported, request, submitted, work


def handle(dispatcher: Dispatcher, now: float, *given: Stimulus) -> list[Command]:
    commands = dispatcher.handle(now, *given)
    dispatcher.check()
    return commands


def running(dispatcher: Dispatcher, *requests: Request) -> list[Grant]:
    """Submit requests that are granted at once and start."""
    grants = [one for one in submit(dispatcher, *requests) if isinstance(one, Grant)]
    assert len(grants) == len(requests)
    handle(dispatcher, 0.25, *(AttemptStarted(grant.action, grant.attempt) for grant in grants))
    return grants


def ended(grant: Grant, status: ExecutionStatus = "ok", *, queue_s: float = 0.0, execution_s: float = 1.0) -> Ended:
    result = AttemptResult(status, reason="reported")
    return Ended(grant.action, grant.node, grant.attempt, 0, result, queue_s=queue_s, execution_s=execution_s)


def state(dispatcher: Dispatcher, name: str) -> str:
    action = dispatcher.action(name)
    return action.state if action is not None else "answered"


def parked(cores: int = 1) -> tuple[Dispatcher, Grant]:
    """A dispatcher with one node and one parked action, r0, that began to run at 0.25 and was parked at 1."""
    dispatcher = leading(host("a", cores))
    (grant,) = running(dispatcher, act("r0", cores=cores))
    assert handle(dispatcher, 1.0, AttemptParked("r0", 1)) == []
    assert state(dispatcher, "r0") == "parked"
    return dispatcher, grant


# ---- units -----------------------------------------------------------------------------------------------------------


def test_the_leader_asks_the_node_of_a_running_action_alone() -> None:
    dispatcher = leading(host("a", 2))
    running(dispatcher, act("r0"), request("plain", work()))
    submit(dispatcher, act("next", "u"))
    assert handle(dispatcher, 1.0, ParkRequested("r0")) == [Park("r0", "a", 1)]
    assert handle(dispatcher, 1.0, ParkRequested("plain")) == [], "it is in no environment"
    assert handle(dispatcher, 1.0, ParkRequested("next")) == [], "it is queued"
    assert handle(dispatcher, 1.0, ParkRequested("unknown")) == []


def test_a_parked_action_returns_its_units_and_keeps_what_its_environment_holds() -> None:
    dispatcher = leading(host("a", 1))
    running(dispatcher, act("r0"))
    assert submit(dispatcher, request("next", work())) == []
    (grant,) = handle(dispatcher, 1.0, AttemptParked("r0", 1))
    assert isinstance(grant, Grant)
    assert grant.action == "next"
    node = dispatcher.node("a")
    assert node is not None
    assert (node.used["cores"], node.used["memory_mb"]) == (1, 10)
    assert handle(dispatcher, 2.0, ResumeRequested("r0")) == []
    _, resume = handle(dispatcher, 3.0, reported(ended(grant)))
    assert resume == Resume("r0", "a", 1, {"cores": 1}, 1e6 - 3.0)
    assert state(dispatcher, "r0") == "running"


def test_it_continues_under_its_old_key_before_later_work() -> None:
    dispatcher, _ = parked()
    (other,) = handle(dispatcher, 1.0, submitted(request("busy", work(), at_s=1.0)))
    handle(dispatcher, 2.0, submitted(request("later", work(), at_s=2.0)))
    assert isinstance(other, Grant)
    assert handle(dispatcher, 3.0, ResumeRequested("r0")) == []
    found = handle(dispatcher, 4.0, reported(ended(other)))
    assert [one.action for one in found if isinstance(one, Resume | Grant)] == ["r0"]


def test_units_are_reserved_for_it_if_it_needs_several() -> None:
    """Without a reservation, later narrow work would always take the core that becomes free."""
    dispatcher = leading(host("a", 2))
    running(dispatcher, act("wide", cores=2))
    handle(dispatcher, 1.0, AttemptParked("wide", 1))
    grants = handle(dispatcher, 1.0, submitted(*(request(f"n{at}", work(), at_s=1.0, seq=at) for at in range(3))))
    first, second = (one for one in grants if isinstance(one, Grant))
    handle(dispatcher, 2.0, ResumeRequested("wide"))
    assert not [one for one in handle(dispatcher, 3.0, reported(ended(first))) if not isinstance(one, AnswerAction)]
    found = handle(dispatcher, 4.0, reported(ended(second)))
    assert [one.units for one in found if isinstance(one, Resume)] == [{"cores": 2}]


def test_a_request_to_continue_may_be_repeated_and_may_come_before_the_report() -> None:
    dispatcher = leading(host("a", 1))
    running(dispatcher, act("r0"))
    handle(dispatcher, 1.0, ParkRequested("r0"))
    assert handle(dispatcher, 1.5, ResumeRequested("r0")) == []
    assert [type(one) for one in handle(dispatcher, 2.0, AttemptParked("r0", 1))] == [Resume]
    assert handle(dispatcher, 2.5, ResumeRequested("r0")) == [], "it runs, and nobody has asked to park it"
    assert handle(dispatcher, 3.0, AttemptParked("r0", 1)) == []
    assert state(dispatcher, "r0") == "parked"
    (other,) = handle(dispatcher, 3.5, submitted(request("busy", work(), at_s=3.5)))
    for _ in range(3):
        assert handle(dispatcher, 4.0, ResumeRequested("r0")) == []
    assert isinstance(other, Grant)
    assert [type(one) for one in handle(dispatcher, 5.0, reported(ended(other)))] == [AnswerAction, Resume]


@pytest.mark.parametrize("asked", ["while queued", "twice"])
def test_a_request_to_continue_that_changes_nothing_does_not_end_a_later_park(asked: str) -> None:
    dispatcher = leading(host("a", 1))
    (busy,) = running(dispatcher, request("busy", work(), seq=0))
    assert submit(dispatcher, act("r0", seq=1)) == []
    if asked == "while queued":
        assert handle(dispatcher, 1.0, ResumeRequested("r0")) == []
    handle(dispatcher, 1.0, reported(ended(busy)))
    handle(dispatcher, 1.0, AttemptStarted("r0", 1))
    if asked == "twice":
        found = handle(dispatcher, 2.0, AttemptParked("r0", 1), submitted(request("next", work(), at_s=2.0)))
        handle(dispatcher, 3.0, ResumeRequested("r0"), ResumeRequested("r0"))
        handle(dispatcher, 4.0, *(reported(ended(one)) for one in found if isinstance(one, Grant)))
    assert state(dispatcher, "r0") == "running"
    assert handle(dispatcher, 5.0, AttemptParked("r0", 1)) == [], "the node parks it by itself"
    assert state(dispatcher, "r0") == "parked"


def test_a_wait_for_units_that_a_park_ends_frees_its_reservation_at_once() -> None:
    dispatcher = leading(host("a", 2))
    running(dispatcher, act("wide", cores=2))
    handle(dispatcher, 1.0, AttemptParked("wide", 1))
    long = replace(work(timeout_s=500.0), duration_s=100.0)
    found = handle(dispatcher, 1.0, submitted(*(request(f"n{at}", long, at_s=1.0, seq=at) for at in range(3))))
    first, _ = (one for one in found if isinstance(one, Grant))
    handle(dispatcher, 2.0, ResumeRequested("wide"))
    assert [type(one) for one in handle(dispatcher, 3.0, reported(ended(first)))] == [AnswerAction]
    (grant,) = handle(dispatcher, 4.0, ParkRequested("wide"))
    assert isinstance(grant, Grant)
    assert grant.action == "n2"


def test_a_report_of_another_attempt_changes_nothing() -> None:
    dispatcher = leading(host("a", 1))
    running(dispatcher, act("r0"))
    assert handle(dispatcher, 1.0, AttemptParked("r0", 2), AttemptParked("unknown", 1)) == []
    assert state(dispatcher, "r0") == "running"


def test_parked_work_is_no_demand_and_a_share_is_enough_for_it_to_continue() -> None:
    dispatcher, _ = parked(cores=2)
    handle(dispatcher, 1.0, TargetReceived("cores@cpu", 0))
    for now in (1.0, 11.0, 21.0, 31.0):
        handle(dispatcher, now, NodeSeen("a", "1"), TickPassed())
    node = dispatcher.node("a")
    assert node is not None
    assert node.owned["cores"] == 0
    found = handle(dispatcher, 31.0, ResumeRequested("r0"))
    assert [type(one) for one in found] == [SetShare, Resume]


# ---- times -----------------------------------------------------------------------------------------------------------


def test_parked_time_is_apart_from_execution_and_the_wait_for_units_is_queueing() -> None:
    dispatcher, grant = parked()
    (other,) = handle(dispatcher, 1.0, submitted(request("busy", work(), at_s=1.0)))
    handle(dispatcher, 5.0, ResumeRequested("r0"))
    assert isinstance(other, Grant)
    handle(dispatcher, 7.0, reported(ended(other)))
    (answer,) = handle(dispatcher, 10.0, reported(ended(grant, execution_s=4.0)))
    assert isinstance(answer, AnswerAction)
    (stage,) = answer.acts
    assert (stage.queue_s, stage.execution_s, stage.parked_s) == (2.0, 4.0, 4.0)


@pytest.mark.parametrize(("asked_s", "parts"), [(100.0, (0.25, 0.75, 8.0)), (5.0, (4.25, 0.75, 4.0))])
def test_times_of_a_parked_action_that_is_lost(asked_s: float, parts: tuple[float, float, float]) -> None:
    dispatcher, _ = parked()
    handle(dispatcher, 1.0, submitted(request("busy", work(), at_s=1.0)))
    if asked_s < 9.0:
        handle(dispatcher, asked_s, ResumeRequested("r0"))
    found = handle(dispatcher, 9.0, NodeLost("a", "gone"))
    answer = next(one for one in found if isinstance(one, AnswerAction) and one.action == "r0")
    assert answer.ended == "unknown-outcome"
    assert (answer.queue_s, answer.execution_s, answer.parked_s) == parts


# ---- charges and predictions -----------------------------------------------------------------------------------------


def lasting(seconds: float) -> Request:
    """An action that is expected to execute for so long."""
    one = act("r0")
    return replace(one, stages=(replace(one.stages[0], duration_s=seconds, timeout_s=600.0),))


@pytest.mark.parametrize(("declared_s", "charged_s"), [(10.0, 10.0), (0.5, 9.5)])
def test_a_tenant_is_charged_once_for_what_parked_work_executes(declared_s: float, charged_s: float) -> None:
    """Ten times of one second each, while another tenant waits. What was declared too short is not corrected, as for
    other work.
    """
    dispatcher = leading(host("a", 2))
    long = replace(work(timeout_s=9_000.0), duration_s=9_000.0)
    (mine,) = running(dispatcher, act("mine", "t"))
    handle(dispatcher, 0.5, reported(ended(mine)))
    (theirs,) = running(dispatcher, act("theirs", "t2"))
    handle(dispatcher, 0.5, reported(ended(theirs)))
    running(dispatcher, request("long", long))
    handle(dispatcher, 1.0, submitted(replace(act("wide", "t2", cores=2), tenant="bob")))
    handle(dispatcher, 1.0, submitted(replace(lasting(declared_s), tenant="ada")))
    handle(dispatcher, 1.0, AttemptStarted("r0", 1))
    for at in range(9):
        handle(dispatcher, 2.0 * at + 2.0, AttemptParked("r0", 1))
        handle(dispatcher, 2.0 * at + 3.0, ResumeRequested("r0"))
        assert state(dispatcher, "r0") == "running"
    queue = dispatcher.cluster.queues.pool("cores@cpu").lanes["=a"].queue
    assert queue._virtual == {"ada": pytest.approx(charged_s), "bob": 0.0}


def test_parked_work_continues_behind_a_reservation_if_it_is_parked_before_that_begins() -> None:
    """It is expected to execute for 100 s in all, and was parked after 0.75 s."""
    dispatcher = leading(host("a", 2))
    running(dispatcher, lasting(100.0), request("busy", replace(work(timeout_s=600.0), duration_s=50.0)))
    handle(dispatcher, 1.0, AttemptParked("r0", 1))
    wide = request("wide", work(units={"cores": 2}), at_s=-10.0)
    assert handle(dispatcher, 1.0, submitted(wide)) == []
    assert [type(one) for one in handle(dispatcher, 2.0, ResumeRequested("r0"))] == [Resume]


def test_a_new_leader_counts_what_was_executed_before_the_park_that_it_finds() -> None:
    dispatcher = Dispatcher(specs=SPECS)
    handle(dispatcher, 200.0, PlacementRestored("t", "a", {"memory_mb": 10}), submitted(act("r0")))
    handle(dispatcher, 200.0, ActionRestored("r0", 0, 1, (), "a"), joined(host("a", 1)))
    held = {"r0": HeldGrant(0, 1, 10.0, {"cores": 1}, parked=True)}
    handle(dispatcher, 200.0, InventoryReported("a", "1", held, {"t": {"memory_mb": 10}}))
    assert dispatcher.registry.actions["r0"].between_parks_s == 10.0
    handle(dispatcher, 201.0, ResumeRequested("r0"))
    handle(dispatcher, 202.0, AttemptParked("r0", 1))
    assert dispatcher.registry.actions["r0"].between_parks_s == 5.5, "10 s and 1 s"


# ---- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resuming", [False, True])
@pytest.mark.parametrize(
    ("stimulus", "as_"),
    [
        (ActionCancelled("r0", "why"), "cancelled"),
        (BatchCancelled("b", "why"), "cancelled"),
        (TrajectoryClosed("t"), "cancelled"),
        (TickPassed(), "expired"),
    ],
)
def test_a_parked_action_is_revoked_and_answered_when_its_node_confirms(
    stimulus: Stimulus, as_: str, *, resuming: bool
) -> None:
    dispatcher = leading(host("a", 1))
    (grant,) = running(dispatcher, replace(act("r0"), batch="b", deadline_s=20.0))
    handle(dispatcher, 1.0, AttemptParked("r0", 1), submitted(request("busy", work(timeout_s=100.0), at_s=1.0)))
    if resuming:
        handle(dispatcher, 2.0, ResumeRequested("r0"))
    handle(dispatcher, 20.0, NodeSeen("a", "1"))
    assert Revoke("r0", "a", 1) in handle(dispatcher, 20.0, stimulus)
    assert handle(dispatcher, 20.5, ResumeRequested("r0"), AttemptParked("r0", 1)) == []
    found = handle(dispatcher, 21.0, reported(ended(grant, "cancelled")))
    assert [one.ended for one in found if isinstance(one, AnswerAction)] == [as_]


@pytest.mark.parametrize("resuming", [False, True])
def test_it_ends_with_its_environment(resuming: bool) -> None:
    dispatcher, grant = parked()
    if resuming:
        handle(dispatcher, 1.0, submitted(request("busy", work(), at_s=1.0)))
        handle(dispatcher, 2.0, ResumeRequested("r0"))
    lost = AttemptResult("environment-lost", reason="it has ended", environment_ended="lost")
    found = handle(
        dispatcher,
        3.0,
        reported(Ended("r0", "a", grant.attempt, 0, lost)),
        EnvironmentEndReported("a", "1", "t", "lost", "it has ended"),
    )
    assert [(one.action, one.ended) for one in found if isinstance(one, AnswerAction)] == [("r0", "environment-lost")]
    assert not any(isinstance(one, Resume) for one in found)
    assert state(dispatcher, "r0") == "answered"


@pytest.mark.parametrize(("cancelled", "asked_s", "as_"), [(False, 26.0, "unknown-outcome"), (True, 17.0, "cancelled")])
def test_a_parked_attempt_whose_end_was_not_reported_is_found_by_an_inventory(
    cancelled: bool, asked_s: float, as_: str
) -> None:
    """It was parked at 1 and is cancelled at 2. Its node does not have it any more, so nothing answers the revocation.
    It is asked 15 s later, and without a cancellation after the timeout (10 s) and 15 s.
    """
    dispatcher, _ = parked()
    if cancelled:
        assert handle(dispatcher, 2.0, ActionCancelled("r0", "why")) == [Revoke("r0", "a", 1)]
    assert handle(dispatcher, asked_s, NodeSeen("a", "1"), TickPassed()) == []
    assert handle(dispatcher, asked_s + 0.1, NodeSeen("a", "1"), TickPassed()) == [AskInventory("a")]
    found = handle(dispatcher, asked_s + 0.2, InventoryReported("a", "1", {}, {"t": {"memory_mb": 10}}))
    assert [(one.action, one.ended) for one in found if isinstance(one, AnswerAction)] == [("r0", as_)]


def test_a_node_is_asked_again_about_a_parked_attempt_that_it_lists() -> None:
    dispatcher, _ = parked()
    held = {"r0": HeldGrant(0, 1, 0.75, {"cores": 1}, parked=True)}
    for now in (30.0, 45.0):
        assert handle(dispatcher, now, NodeSeen("a", "1"), TickPassed()) == [AskInventory("a")]
        assert handle(dispatcher, now, InventoryReported("a", "1", held, {"t": {"memory_mb": 10}})) == []
        assert handle(dispatcher, now + 14.9, NodeSeen("a", "1"), TickPassed()) == [], "once in 15 s at most"
        assert state(dispatcher, "r0") == "parked"


# ---- a new leader ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resuming", [False, True])
def test_a_new_leader_adopts_it_parked_and_without_units(resuming: bool) -> None:
    dispatcher = Dispatcher(specs=SPECS)
    handle(dispatcher, 5.0, PlacementRestored("t", "a", {"memory_mb": 10}))
    handle(dispatcher, 5.0, submitted(act("r0"), request("next", work(), at_s=1.0)))
    handle(dispatcher, 5.0, ActionRestored("r0", 0, 1, (), "a"), joined(host("a", 1)))
    assert handle(dispatcher, 5.5, AttemptParked("r0", 1)) == [], "the inventory decides"
    held = {"r0": HeldGrant(0, 1, 4.0, {"cores": 1}, parked=True, resuming=resuming)}
    (grant,) = handle(dispatcher, 6.0, InventoryReported("a", "1", held, {"t": {"memory_mb": 10}}))
    assert isinstance(grant, Resume if resuming else Grant)
    assert (grant.action, state(dispatcher, "r0")) == (("r0", "running") if resuming else ("next", "parked"))


@pytest.mark.parametrize("parked", [False, True])
def test_times_of_an_action_that_was_parked_under_a_former_leader(parked: bool) -> None:
    """It arrived at 0, began at 1, computed for 3 s until now (10), and was parked for the rest."""
    dispatcher = new_leader()
    times = HeldGrant(0, 1, 3.0, {"cores": 1}, parked=parked, paused_s=6.0)
    handle(dispatcher, 10.0, InventoryReported("a", "1", {"r0": times}, {"t": {"memory_mb": 10}}))
    if parked:
        handle(dispatcher, 12.0, ResumeRequested("r0"))
    grant = Grant("r0", "a", 1, 0, {"cores": 1}, 0.0)
    (answer,) = handle(dispatcher, 14.0, reported(ended(grant, execution_s=5.0 if parked else 7.0)))
    assert isinstance(answer, AnswerAction)
    (stage,) = answer.acts
    assert (stage.queue_s, stage.parked_s) == (1.0, 8.0 if parked else 6.0)


def test_an_unwanted_parked_attempt_is_revoked_and_holds_no_units() -> None:
    dispatcher = Dispatcher(specs=SPECS)
    handle(dispatcher, 5.0, joined(host("a", 1)), submitted(request("next", work(), at_s=1.0)))
    held = {"gone": HeldGrant(0, 1, 4.0, {"cores": 1}, parked=True)}
    revoke, grant = handle(dispatcher, 6.0, InventoryReported("a", "1", held, {}))
    assert revoke == Revoke("gone", "a", 1)
    assert isinstance(grant, Grant)


# ---- load ------------------------------------------------------------------------------------------------------------

ENVIRONMENTS, CORES, ROUNDS = 64, 2, 12
BURST_S, OUTSIDE_S = 0.5, 8.0


@dataclass(slots=True)
class ParkingNode:
    """A node of two cores: each action computes for `BURST_S`, waits outside, and continues, several times."""

    rng: random.Random
    dispatcher: Dispatcher
    tenants: dict[str, str]
    now: float = 0.0
    events: list[tuple[float, int, str, str]] = field(default_factory=list)
    rounds: dict[str, int] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    asked_s: dict[str, float] = field(default_factory=dict)
    waits_s: list[float] = field(default_factory=list)
    grants: dict[str, Grant] = field(default_factory=dict)
    bursts_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Tenant -> seconds computed."""
    half_s: dict[str, float] = field(default_factory=dict)
    """The same when half of all rounds had begun."""
    serial: int = 0

    def at(self, when: float, what: str, name: str) -> None:
        self.serial += 1
        heapq.heappush(self.events, (when, self.serial, what, name))

    def do(self, *given: Stimulus) -> None:
        for command in handle(self.dispatcher, self.now, *given):
            if isinstance(command, Grant):
                assert command.action not in self.grants, "one attempt each"
                self.grants[command.action] = command
                self.dispatcher.handle(self.now, AttemptStarted(command.action, command.attempt))
            if isinstance(command, Grant | Resume):
                self.waits_s.append(self.now - self.asked_s[command.action])
                self.running.add(command.action)
                assert len(self.running) <= CORES
                del self.asked_s[command.action]
                burst_s = self.rng.uniform(0.1, 2 * BURST_S)
                self.bursts_s[self.tenants[command.action]] += burst_s
                if len(self.waits_s) == ENVIRONMENTS * ROUNDS // 2:
                    self.half_s = dict(self.bursts_s)
                self.at(self.now + burst_s, "burst ends", command.action)

    def run(self) -> None:
        while self.events:
            assert len(self.running) == CORES or not self.asked_s, "a core is idle and parked work waits"
            self.now, _, what, name = heapq.heappop(self.events)
            if what == "outside ends":
                self.asked_s[name] = self.now
                self.do(ResumeRequested(name))
                continue
            self.running.remove(name)
            self.rounds[name] = self.rounds.get(name, 0) + 1
            if self.rounds[name] == ROUNDS:
                self.do(reported(ended(self.grants[name])))
            else:
                self.at(self.now + self.rng.uniform(0.1, 2 * OUTSIDE_S), "outside ends", name)
                self.do(AttemptParked(name, 1))


@pytest.mark.parametrize("seed", range(3))
def test_sixty_four_environments_park_on_two_cores_and_nobody_starves(seed: int) -> None:
    """The order is by age, and tenants take turns: nobody waits longer than for all work of the others."""
    tenants = ("ada", "bob", "cyd")
    names = {f"r{at}": tenants[at % 3] for at in range(ENVIRONMENTS)}
    node = ParkingNode(random.Random(seed), leading(host("a", CORES, memory=1000)), names)
    node.asked_s = dict.fromkeys(names, 0.0)
    requests = [replace(act(name, f"t{at}", seq=at), tenant=names[name]) for at, name in enumerate(names)]
    node.do(submitted(*requests))
    node.run()
    assert node.rounds == dict.fromkeys(names, ROUNDS), "all have ended"
    assert len(node.waits_s) == ENVIRONMENTS * ROUNDS
    computed_s = sum(node.bursts_s.values())
    assert max(node.waits_s) <= computed_s / CORES, f"the longest wait is {max(node.waits_s):.1f} s"
    shares = [node.half_s[tenant] for tenant in tenants]
    assert max(shares) <= 1.2 * min(shares), f"tenants' shares of the first half: {shares}"


def new_leader(*, wanted: Literal["", "parked", "resumed"] = "") -> Dispatcher:
    """A new leader that waits for the inventory of node a, where r0 was granted."""
    dispatcher = Dispatcher(specs=SPECS)
    handle(dispatcher, 5.0, PlacementRestored("t", "a", {"memory_mb": 10}), submitted(act("r0")))
    handle(dispatcher, 5.0, ActionRestored("r0", 0, 1, (), "a", wanted), joined(host("a", 1)))
    return dispatcher


def inventory(*, parked: bool) -> InventoryReported:
    held = {"r0": HeldGrant(0, 1, 4.0, {"cores": 1}, parked=parked)}
    return InventoryReported("a", "1", held, {"t": {"memory_mb": 10}})


@pytest.mark.parametrize("stored", [False, True], ids=["request", "stored request"])
def test_a_new_leader_keeps_a_request_to_continue_until_the_inventory(stored: bool) -> None:
    dispatcher = new_leader(wanted="resumed" if stored else "")
    if not stored:
        assert handle(dispatcher, 5.5, ResumeRequested("r0")) == []
    (resume,) = (one for one in handle(dispatcher, 6.0, inventory(parked=True)) if isinstance(one, Resume))
    assert (resume.action, state(dispatcher, "r0")) == ("r0", "running")


@pytest.mark.parametrize("stored", [False, True], ids=["request", "stored request"])
def test_a_new_leader_parks_what_the_former_one_did_not(stored: bool) -> None:
    dispatcher = new_leader(wanted="parked" if stored else "")
    if not stored:
        assert handle(dispatcher, 5.5, ParkRequested("r0")) == []
    parks = [one for one in handle(dispatcher, 6.0, inventory(parked=False)) if isinstance(one, Park)]
    assert parks == [Park("r0", "a", 1)]
    handle(dispatcher, 7.0, AttemptParked("r0", 1))
    assert state(dispatcher, "r0") == "parked"


def test_a_request_that_was_taken_back_before_the_inventory_parks_nothing_for_long() -> None:
    dispatcher = new_leader(wanted="resumed")
    assert not [one for one in handle(dispatcher, 6.0, inventory(parked=False)) if isinstance(one, Park | Resume)]
    (resume,) = (one for one in handle(dispatcher, 7.0, AttemptParked("r0", 1)) if isinstance(one, Resume))
    assert resume.action == "r0"


def test_an_action_whose_start_is_not_reported_yet_can_be_parked() -> None:
    dispatcher = leading(host("a", 1))
    submit(dispatcher, act("r0"))
    assert handle(dispatcher, 1.0, ParkRequested("r0")) == [Park("r0", "a", 1)]


def test_a_repeated_request_to_continue_does_not_apply_to_the_next_time_it_is_parked() -> None:
    dispatcher, _ = parked()
    (other,) = handle(dispatcher, 1.0, submitted(request("busy", work(), at_s=1.0)))
    assert isinstance(other, Grant)
    handle(dispatcher, 2.0, ResumeRequested("r0"), ResumeRequested("r0"))
    assert state(dispatcher, "r0") == "resuming"
    handle(dispatcher, 3.0, reported(ended(other)))
    handle(dispatcher, 4.0, AttemptParked("r0", 1))
    assert state(dispatcher, "r0") == "parked", "its node has parked it by itself"


def test_a_request_to_park_takes_back_the_request_to_continue() -> None:
    dispatcher, _ = parked()
    handle(dispatcher, 1.0, submitted(request("busy", work(), at_s=1.0)))
    handle(dispatcher, 2.0, ResumeRequested("r0"))
    assert state(dispatcher, "r0") == "resuming"
    assert handle(dispatcher, 3.0, ParkRequested("r0")) == []
    assert state(dispatcher, "r0") == "parked"
    handle(dispatcher, 4.0, ResumeRequested("r0"))
    assert state(dispatcher, "r0") == "resuming"
