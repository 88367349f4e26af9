"""The mesh in virtual time: the leader's dispatcher with one quota for each service, and a node that calls it.

All decisions are those of `shared/policy`: who waits, when a quota is free, how a service that pushes back is slowed
(`resources.brakes`), and when a call is repeated (`resources.retries`). The node reports as the quota manager does.
Each call takes a random time from its grant to the service, which the ledger does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import Final

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.stimuli import (
    AttemptsEnded,
    AttemptStarted,
    InventoryReported,
    NodeJoined,
    NodeSeen,
    RequestsSubmitted,
    Stimulus,
    TickPassed,
)
from shared.policy.model.formulation import AnswerAction, Command, Grant, Request, Work
from shared.policy.model.quotas import QuotaLimits, Rate
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult, Feedback
from shared.policy.resources.retries import retry_delay_s
from treadle.lab.replay.search.assumptions import Ours
from treadle.lab.replay.search.provider import ProviderAnswer, SimulatedProvider
from treadle.lab.replay.search.trace import AgentCall
from treadle.lab.replay.search.virtual_time import VirtualTime

NODE: Final = "quota-manager"
INCARNATION: Final = "1"
KIND: Final = "http"
CALLS: Final = "calls"
CAPACITY: Final = 1_000_000
"""Calls that the node can execute at once: no limit here."""
TICK_S: Final = 0.25
"""Interval of the leader's ticks. Refilled quotas wake it in between."""

Done = Callable[[bool], None]


def limits_of(provider: SimulatedProvider, ours: Ours) -> QuotaLimits:
    """Return the quota that an operator sets for a service."""
    rules = provider.rules
    rate = Rate(rules.per_s, 1.0, max(1.0, ours.burst * rules.burst))
    return QuotaLimits((max(1.0, math.floor(ours.concurrency * rules.concurrency)),), (rate,))


class SearchMesh:
    """Calls of trajectories as actions of the mesh."""

    def __init__(
        self, time: VirtualTime, providers: Mapping[str, SimulatedProvider], ours: Ours, random: Random
    ) -> None:
        self._time, self._providers, self._ours, self._random = time, providers, ours, random
        self._asked: dict[str, tuple[AgentCall, Done, float]] = {}
        """Unanswered action -> call, receiver of its answer, deadline."""
        self._serial = 0
        self._wake_s = math.inf
        """Earliest wake-up that is set."""
        self.dispatcher = Dispatcher()
        quotas = [QuotaSet(name, limits_of(provider, ours)) for name, provider in providers.items()]
        joined = NodeJoined(NODE, INCARNATION, "default", {CALLS: CAPACITY}, frozenset({KIND}))
        self._handle(*quotas, joined)
        self._handle(InventoryReported(NODE, INCARNATION, {}))
        time.after(TICK_S, self._tick)

    def call(self, slot: int, call: AgentCall, done: Done) -> None:
        """Submit an action."""
        self._serial += 1
        now, name = self._time.now, f"{slot}.{self._serial}"
        work = Work(KIND, KIND, f"{CALLS}@default", {CALLS: 1}, self._ours.timeout_s, quotas={call.upstream: 1.0})
        deadline_s = now + self._ours.budget_s
        self._asked[name] = (call, done, deadline_s)
        arrival = (int(now * 1000), self._serial)
        self._handle(RequestsSubmitted((Request(name, "tenant", "task", "", arrival, (work,), deadline_s),)))

    # ---- the leader --------------------------------------------------------------------------------------------

    def _handle(self, *stimuli: Stimulus) -> None:
        self._execute(self.dispatcher.handle(self._time.now, *stimuli))
        wake_s = self.dispatcher.next_wake_s
        if wake_s < self._wake_s:
            self._wake_s = wake_s
            self._time.at(wake_s, lambda: self._wake(wake_s))

    def _wake(self, wake_s: float) -> None:
        if wake_s == self._wake_s:
            self._wake_s = math.inf
            self._handle(TickPassed())

    def _tick(self) -> None:
        self._handle(NodeSeen(NODE, INCARNATION), TickPassed())
        self._time.after(TICK_S, self._tick)

    def _execute(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Grant):
                self._begin(command)
            elif isinstance(command, AnswerAction):
                _, done, _ = self._asked.pop(command.action)
                ok = command.ended == "ok"
                self._time.after(self._ours.answer_s, partial(done, ok))

    # ---- the node ----------------------------------------------------------------------------------------------

    def _begin(self, grant: Grant) -> None:
        call, _, _ = self._asked[grant.action]
        way_s = self._ours.network_s + self._random.uniform(0.0, self._ours.jitter_s)
        self._time.after(way_s, lambda: self._send(grant, call))

    def _send(self, grant: Grant, call: AgentCall) -> None:
        self._handle(AttemptStarted(grant.action, grant.attempt))
        provider, now = self._providers[call.upstream], self._time.now
        answer = provider.call(now, call.work)
        if answer.admitted:
            self._time.after(answer.after_s, provider.leave)
        after_s = min(answer.after_s, self._ours.timeout_s)
        self._time.after(after_s, lambda: self._end(grant, call, answer, after_s))

    def _end(self, grant: Grant, call: AgentCall, answer: ProviderAnswer, after_s: float) -> None:
        result = self._result(grant, call, answer)
        self._handle(AttemptsEnded((Ended(grant.action, NODE, grant.attempt, 0, result, execution_s=after_s),)))

    def _result(self, grant: Grant, call: AgentCall, answer: ProviderAnswer) -> AttemptResult:
        """Return the result of an attempt, as the quota manager forms it."""
        if answer.outcome == "ok" and answer.after_s <= self._ours.timeout_s:
            return AttemptResult("ok", feedback=(Feedback(call.upstream, "ok"),))
        pushed_back = answer.outcome == "refused"
        reason = "429" if pushed_back else answer.outcome
        feedback = (Feedback(call.upstream, "pushed-back" if pushed_back else "failed", answer.retry_after_s, reason),)
        delay_s = retry_delay_s(grant.attempt, answer.retry_after_s, self._random)
        deadline_s = self._asked[grant.action][2]
        last = grant.attempt >= self._ours.attempts and not pushed_back
        if last or self._time.now + delay_s >= deadline_s:
            return AttemptResult("upstream-failed", reason=reason, feedback=feedback)
        return AttemptResult("postponed", reason=reason, retry_in_s=delay_s, feedback=feedback)
