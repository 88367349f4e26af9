"""An action that asked to continue waits for those ahead of it only, in random histories of parking."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from shared.policy.dispatch.stimuli import (
    ActionCancelled,
    AttemptParked,
    AttemptStarted,
    ParkRequested,
    ResumeRequested,
    Stimulus,
)
from shared.policy.model.formulation import AnswerAction, Grant, Resume, Revoke
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult, ExecutionStatus
from tests.shared.policy.dispatch.test_dispatch_trajectories import act, host, leading
from tests.shared.policy.strategies import reported, request, submitted, work

TENANTS = ("ada", "bob", "cyd")
picks = st.integers(0, 1000)
EACH_S = 1.0


class TurnsMachine(RuleBasedStateMachine):
    """One node; each action needs one core. All declare one duration and report none, so nothing is learned that would
    change the order of keys: it is that of the actions' numbers.

    The model is a set of actions that wait to continue and the number of idle cores. It has no queue.
    """

    @initialize(cores=st.integers(1, 3), tenants=st.integers(1, len(TENANTS)))
    def begin(self, cores: int, tenants: int) -> None:
        self.cores, self.tenants = cores, TENANTS[:tenants]
        self.dispatcher = leading(host("a", cores, memory=10_000))
        self.now = 0.0
        self.number = 0
        self.tenant: dict[str, str] = {}
        self.grants: dict[str, Grant] = {}
        """Attempts that the node knows."""
        self.running: set[str] = set()
        self.parked: set[str] = set()
        """Parked on the node, and not asked to continue."""
        self.waiting: set[str] = set()
        """They wait to continue."""
        self.revoked: set[str] = set()

    def handle(self, *given: Stimulus) -> None:
        self.now += 0.125
        for command in self.dispatcher.handle(self.now, *given):
            match command:
                case Grant(action=action):
                    assert action not in self.grants, "one attempt each"
                    self.grants[action] = command
                    self._begins(action)
                    self.dispatcher.handle(self.now, AttemptStarted(action, command.attempt))
                case Resume(action=action):
                    assert action in self.waiting, f"{action} has not asked to continue"
                    self.waiting.remove(action)
                    self._continues(action)
                case Revoke(action=action):
                    self.revoked.add(action)
                    self.waiting.discard(action)
                    self.parked.discard(action)
                case AnswerAction(action=action):
                    assert action not in self.running
                case _:
                    pass
        self.dispatcher.check()

    def _begins(self, action: str) -> None:
        """New work of one tenant passes none that waits; of several tenants, not all: they take turns in each lane."""
        passed = [other for other in self.waiting if int(other) < int(action)]
        assert not passed or (len(self.tenants) > 1 and len(passed) < len(self.waiting)), f"{action} passes {passed}"
        self._take_core(action)

    def _continues(self, action: str) -> None:
        same = [other for other in self.waiting if self.tenant[other] == self.tenant[action]]
        passed = [other for other in same if int(other) < int(action)]
        assert not passed, f"{action} passes {passed}"
        self._take_core(action)

    def _take_core(self, action: str) -> None:
        self.running.add(action)
        assert len(self.running) <= self.cores

    @invariant()
    def no_core_is_idle_while_one_waits(self) -> None:
        assert not self.waiting or len(self.running) == self.cores

    @rule(some=st.lists(st.tuples(picks, st.booleans()), min_size=1, max_size=4))
    def submit(self, some: list[tuple[int, bool]]) -> None:
        """Actions of any tenants, in environments of their own or in none."""
        requests = []
        for pick, environment in some:
            self.number += 1
            name = f"{self.number}"
            self.tenant[name] = self.tenants[pick % len(self.tenants)]
            one = act(name, f"t{name}", seq=self.number) if environment else request(name, work(), seq=self.number)
            arrival, stages = (round(self.now * 1000), self.number), (replace(one.stages[0], duration_s=EACH_S),)
            requests.append(replace(one, tenant=self.tenant[name], arrival=arrival, stages=stages))
        self.handle(submitted(*requests))

    @precondition(lambda self: self.running)
    @rule(some=st.lists(st.tuples(picks, st.booleans(), st.booleans()), min_size=1, max_size=4))
    def park(self, some: list[tuple[int, bool, bool]]) -> None:
        """A leader asks, or the node parks by itself; the request to continue may come before the report."""
        for pick, asked, resumed in some:
            able = {one for one in self.running - self.revoked if self.grants[one].begins}
            if not able:
                return
            action = self._one(able, pick)
            if asked:
                self.handle(ParkRequested(action))
                if resumed:
                    self.handle(ResumeRequested(action))
            self.running.remove(action)
            (self.waiting if asked and resumed else self.parked).add(action)
            self.handle(AttemptParked(action, 1))

    @precondition(lambda self: self.parked)
    @rule(some=st.lists(picks, min_size=1, max_size=4), again=st.booleans())
    def resume(self, some: list[int], again: bool) -> None:
        """`again`: the request is repeated."""
        for pick in some:
            if self.parked:
                action = self._one(self.parked, pick)
                self.parked.remove(action)
                self.waiting.add(action)
                self.handle(*[ResumeRequested(action)] * (2 if again else 1))

    @precondition(lambda self: self.waiting)
    @rule(pick=picks)
    def park_one_that_waits(self, pick: int) -> None:
        action = self._one(self.waiting, pick)
        self.waiting.remove(action)
        self.parked.add(action)
        self.handle(ParkRequested(action))

    @precondition(lambda self: len(self.grants) > 2 * self.cores)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        action = self._one(set(self.grants), pick)
        self.handle(ActionCancelled(action, "why"))
        assert action in self.revoked

    @precondition(lambda self: self.running or self.revoked)
    @rule(pick=picks)
    def end(self, pick: int) -> None:
        action = self._one(self.running | self.revoked, pick)
        grant = self.grants.pop(action)
        status: ExecutionStatus = "cancelled" if action in self.revoked else "ok"
        self.running.discard(action)
        self.revoked.discard(action)
        result = AttemptResult(status, passed=True, reason="reported")
        self.handle(reported(Ended(action, "a", grant.attempt, 0, result)))

    def _one(self, names: set[str], pick: int) -> str:
        return sorted(names, key=int)[pick % len(names)]

    def teardown(self) -> None:
        """All that asked to continue do, as soon as those ahead have ended."""
        if not hasattr(self, "dispatcher"):
            return
        for _ in range(4 * self.number):
            if self.waiting and self.running | self.revoked:
                self.end(0)
        assert not self.waiting


TestTurns = TurnsMachine.TestCase
TestTurns.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
