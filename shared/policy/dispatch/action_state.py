"""State of one unanswered action at the leader, and its valid transitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from shared.policy.elastic.scheduling import Scalable
from shared.policy.model.formulation import TRANSITIONS, EndedAs, FailedCalls, Request, StageAct, State, Work
from shared.policy.model.quotas import FIRST_ESTIMATE, LEARNED, NO_QUOTAS, Amounts, hold_key
from shared.policy.model.reports import Ended
from shared.policy.model.results import Usage
from shared.policy.order.ebf import EbfKey
from shared.policy.resources.ledger import Node
from shared.policy.resources.orphans import Orphan
from shared.policy.resources.pools import Lane
from shared.policy.resources.resource import NO_USE, Use

LEAST_RETRY_S, MOST_RETRY_S = 1.0, 3600.0
"""Bounds of `ActionState.retry_in_s`: a restore may take longer than expected, and nodes choose what they report."""


class InvalidTransition(AssertionError):
    """An event asked for a transition that the table does not have. The message lists the action's earlier states."""


@dataclass(slots=True)
class ActionState:
    """One action from journal to answer. Times are absolute seconds."""

    request: Request
    state: State = "queued"
    stage: int = 0
    attempt: int = 0
    """Number of the newest grant in this stage; 0 before the first."""
    node: str = ""
    """Node it is granted on; empty while queued."""
    allocated: bool = False
    """Its units are taken on that node. False while only the store reports a grant of a former leader there."""
    prefetched: bool = False
    """It waits in its node's queue and holds no units yet."""
    parked: bool = False
    """Its attempt is frozen on its node and holds no units. Also true while it waits for units to continue,
    and while it is cancelled in one of these states."""
    asked_to_park: bool = False
    """Its node was asked to park it and has not reported it parked."""
    asked_to_resume: bool = False
    """The request to continue came before its node has reported it parked."""
    parked_s: float = 0.0
    """Seconds for which the present attempt was parked and waited for something outside."""
    resuming_s: float = 0.0
    """Seconds for which it then waited for units."""
    paused_since_s: float = 0.0
    """Start of its state `parked` or `resuming`, or of its cancellation; meaningless in other states."""
    parks: int = 0
    """Number of times that the present attempt was parked."""
    between_parks_s: float = 0.0
    """Mean execution time of the attempt between two parks: the expected time until it is parked again or ends."""
    charged_s: float = 0.0
    """Unit-seconds that its tenant was charged for its grant, until its first park; only in an environment."""
    charged_since: int = 0
    """What `FairQueue.charge` returned then."""
    in_demand: bool = False
    """Its units count in its pool's demand."""
    short: bool = False
    """It holds units and is expected to release them soon."""
    recalls: int = 0
    """Attempts of this stage that were recalled or postponed before they had begun."""
    failed_calls: FailedCalls | None = None
    """Failed calls of this stage, as its node has reported them with its last request to try later."""
    postponed: str = ""
    """Reason of its node's last request to try later."""
    ready_s: float = 0.0
    """Time at which its model service is expected to be resident, if its last attempt ended while it waited for that;
    0: it did not.
    """
    spares_since_s: float = 0.0
    """Time since which it waits for a chunk so that it evicts no service for which work waits (`swaps`); 0: it never
    has.
    """
    overtaken_s: float = 0.0
    """Time since which it is the first of its tenant and later calls of this tenant are granted (`late_calls`); 0: none
    was."""
    serial: int = 0
    """Serial of the grant; orders grants against inventories."""
    queued_s: float = 0.0
    """Earliest possible start of this stage; for the first stage, the arrival."""
    granted_s: float = 0.0
    started_s: float = 0.0
    """Start of execution of its newest attempt, as far as reported; 0 while none is reported."""
    expected_s: float = 0.0
    """Expected execution time, predicted when this stage was queued and again when it was granted."""
    expected_end_s: float = 0.0
    acts: list[StageAct] = field(default_factory=list)
    usage: Usage = field(default_factory=dict)
    """Usage of this stage's attempts, as far as their nodes have reported."""
    restore_s: float = 0.0
    """Seconds for which this stage's attempts waited for their model service, as far as their nodes have reported."""
    cancel_as: EndedAs = "cancelled"
    """End to answer with when the node confirms a revocation."""
    cancel_reason: str = ""
    past_states: list[str] = field(default_factory=list)
    """Earlier states, for the crash report; bounded by attempts and stages."""
    work: Work = field(init=False)
    """Work of its current stage."""
    pool_units: int = field(init=False)
    """Fewest units that it takes from its pool's resource."""
    units: Mapping[str, int] = field(init=False)
    """Units that it takes from its node while it runs: the fewest, until it is granted more."""
    begins: bool = False
    """If granted now, it begins its trajectory's environment."""
    scales: bool = field(init=False)
    """It may be granted more than the fewest units, and the effect on its duration is known."""
    amounts: Amounts = field(init=False)
    """Quota -> amount that it takes: declared, or the newest estimate (`quota_amounts`)."""
    estimated: bool = field(init=False)
    """Some of them are estimates."""
    scalable: Scalable | None = None
    """Duration on each of its amounts, from the last call."""
    reported: tuple[int, ...] = ()
    """Numbers of its units as its node reports them, before they are taken."""
    lane: Lane | None = None
    """Lane where it waits; while it is granted, the lane where it last waited."""
    key: EbfKey = field(init=False)
    """Its position in the lane's order."""
    resource: str = field(init=False)
    """Resource of its pool, the key elasticity resource."""
    duration_key: tuple[str, str, str] = field(init=False)
    """Key under which its duration is learned."""

    def __post_init__(self) -> None:
        self.enter(self.stage, self.attempt)

    def enter(self, stage: int, attempt: int) -> None:
        """Enter this stage with this number of earlier attempts."""
        work = self.request.stages[stage]
        self.stage, self.attempt, self.work = stage, attempt, work
        self.recalls, self.failed_calls = 0, None
        self.units, self.scalable = work.units, None
        self.amounts, self.estimated = work.quotas, bool(work.quotas) and LEARNED in work.quotas.values()
        if self.estimated:
            self.amounts = {name: amount or FIRST_ESTIMATE for name, amount in work.quotas.items()}
        self.scales = work.elasticity is not None and len(work.amounts) > 1
        self.resource = work.pool.partition("@")[0]
        self.pool_units = work.units.get(self.resource, 0)
        kind = f"{work.kind} {work.service}" if work.service else work.kind
        kind = f"{kind} scaled" if self.scales else kind  # another sort of work, usually far longer
        self.duration_key = (self.request.tenant, self.request.task, kind)

    @property
    def wanted_units(self) -> int:
        """Units of its pool's resource that nodes should own for it: the fewest; outside batches, all it could use.

        The planner does not foresee work outside batches. Elastic work of a batch uses the units that are owned anyway.
        """
        return self.work.amounts[-1] if self.scales and not self.request.batch else self.pool_units

    def use(self, now: float = 0.0) -> Use:
        """Return the purpose of its units."""
        return Use(self.work.service, now, self.reported) if self.work.service or self.reported else NO_USE

    def begins_s(self, node: Node, now: float) -> float:
        """Return the time at which it would execute on a node if it were granted now, with `units`."""
        resource = node.resources.get(self.resource) if self.work.service else None
        return now if resource is None else resource.begins_s(self.granted_units, self.use(now))

    def orphan(self, now: float) -> Orphan:
        """Return its attempt as an orphan of its node. A parked one needs no units."""
        units, awaits = (self.units if self.allocated else {}), (self.units if self.prefetched else {})
        return Orphan(self.stage, self.attempt, units, self.serial, now, awaits)

    @property
    def is_like_others(self) -> bool:
        """Return whether all waiting actions of its lane with the same `like_key` need the same of nodes and quotas."""
        return not (self.parked or self.scales) and self.request.need is None

    @property
    def like_key(self) -> object:
        """Key of the waiting actions that are like it: those of its work; if amounts are estimated, of its task too."""
        return (id(self.work), self.duration_key) if self.estimated else id(self.work)

    @property
    def granted_units(self) -> int:
        """Granted units of its pool's resource."""
        return self.units.get(self.resource, 0)

    @property
    def least_units(self) -> int:
        """Units of its pool's resource without which it cannot start, or continue if it is parked."""
        return self.granted_units if self.parked else self.pool_units

    @property
    def needed_quotas(self) -> Amounts:
        """Quotas that it must be granted to start; none if it continues after parking, because it still has them."""
        return NO_QUOTAS if self.parked else self.amounts

    @property
    def hold_key(self) -> str:
        """Key of the hold of its newest attempt."""
        return hold_key(self.request.id, self.stage, self.attempt)

    @property
    def needs(self) -> Mapping[str, int]:
        """Units a node must have free for it; if it begins an environment, with what the environment will hold."""
        return self.needs_of(self.units)

    def needs_of(self, units: Mapping[str, int]) -> Mapping[str, int]:
        """Return what `needs` would be with these units."""
        need = self.request.need
        return need.begun_by(units) if self.begins and need is not None else units

    def could_run_on(self, node: Node) -> bool:
        """Return whether the node could run it if it were empty and owned all its units."""
        return any(self.could_have(node, units) for units in self.choices())

    def could_have(self, node: Node, units: Mapping[str, int]) -> bool:
        """Return whether the node could run it with these units if it were empty and owned all its units."""
        need = self.request.need
        if self.begins and need is not None:
            if need.kind not in node.kinds:
                return False
            units = need.begun_by(units)
        return node.could_ever(self.work.kind, units, self.use())

    def choices(self) -> Iterable[Mapping[str, int]]:
        """Return units with which it can start, the fewest first: those of each degree of a model service, because each
        degree is an engine of its own; else the fewest, or those that it had if it is parked.
        """
        if self.parked:
            return (self.units,)
        return self._degrees() if self.scales and self.work.service else (self.work.units,)

    def _degrees(self) -> Iterator[Mapping[str, int]]:
        yield self.work.units
        for amount in self.work.amounts[1:]:
            yield {**self.work.units, self.resource: amount}

    @property
    def is_last(self) -> bool:
        """No stage comes after this one."""
        return self.stage + 1 == len(self.request.stages)

    def spent(self, now: float, end: Ended | None = None) -> tuple[float, float, float]:
        """Seconds of this stage so far: (queueing, execution, waiting for its model service), together with the time
        parked no more than have passed since it was queued.

        Queueing is all time before its last attempt began, lost attempts included, apart from what these waited for
        their model service. The attempt may have begun before the present grant (under a former leader, or under an
        older grant). Its execution time is then not counted as queueing too. Time for which it was parked is none of
        them; the wait for units to continue is queueing.

        Args:
            now: absolute seconds.
            end: an attempt's end as its node reported it; None: use what was reported of the newest attempt.
        """
        passed_s = max(0.0, now - self.queued_s)
        if not passed_s and end is None:
            return 0.0, 0.0, 0.0  # the last stage has just ended
        parked_s, resuming_s = self.paused(now)
        if end is None:
            running_s = now - self.started_s - parked_s - resuming_s
            executed_s = max(0.0, min(running_s, passed_s)) if self.started_s else 0.0
            waited_s = passed_s
        else:
            executed_s = end.execution_s
            before_s = 0.0  # of earlier attempts
            if self.restore_s:
                before_s = max(0.0, self.restore_s - max(0.0, end.result.restore_s))
            waited_s = (self.granted_s or now) - self.queued_s + end.queue_s + resuming_s - before_s
        left_s = passed_s - executed_s - parked_s
        restore_s = max(0.0, min(self.restore_s, left_s)) if self.restore_s else 0.0
        return max(0.0, min(waited_s, left_s - restore_s)), executed_s, restore_s

    def paused(self, now: float) -> tuple[float, float]:
        """Seconds for which its present attempt was parked so far: (waiting for something outside, for units)."""
        lasts_s = now - self.paused_since_s
        parked_s = self.parked_s + (lasts_s if self.state == "parked" else 0.0)
        return parked_s, self.resuming_s + (lasts_s if self.state == "resuming" else 0.0)

    def pause(self, state: State, now: float) -> None:
        """Move to, between or out of the states `parked` and `resuming`, and record the time in the one that ends. A
        cancellation moves to `cancelling` from any state.
        """
        self.parked_s, self.resuming_s = self.paused(now)
        self.move(state)
        self.paused_since_s = now

    def retry_in_s(self, now: float) -> float:
        """Seconds after which its model service is expected to be resident, if it waits for that; else 0."""
        return min(max(self.ready_s - now, LEAST_RETRY_S), MOST_RETRY_S) if self.ready_s else 0.0

    def scored(self, now: float, end: Ended) -> None:
        """Record the times of this stage, which has a verdict. Times of the next stage count from now."""
        queue_s, execution_s, restore_s = self.spent(now, end)
        parked_s, _ = self.paused(now)
        attempts, units = max(1, self.attempt), self.granted_units
        act = StageAct(self.work.name, queue_s, execution_s, end.node, attempts, units, self.usage, parked_s, restore_s)
        self.acts.append(act)
        self.usage, self.restore_s = {}, 0.0
        self.parked_s = self.resuming_s = 0.0
        self.queued_s, self.granted_s, self.started_s = now, 0.0, 0.0

    def undo_grant(self) -> None:
        """Undo a grant that was never sent, as if the action had kept waiting."""
        assert self.state == "granted", f"{self.request.id} is {self.state}"
        self.past_states.pop()
        self.state = "queued"
        self.granted_s = 0.0

    def move(self, state: State) -> None:
        """Move to the next state.

        Raises:
            InvalidTransition: the table has no such transition; nothing has changed.
        """
        if state not in TRANSITIONS[self.state]:
            raise InvalidTransition(f"{self.request.id}: {' -> '.join([*self.past_states, self.state])} -> {state}?")
        self.past_states.append(self.state)
        self.state = state
        if state == "granted":
            self.ready_s = 0.0
        if state == "queued":
            self.started_s = self.parked_s = self.resuming_s = self.spares_since_s = self.overtaken_s = 0.0
            self.parks, self.charged_s = 0, 0.0
            self.asked_to_park = self.asked_to_resume = False
