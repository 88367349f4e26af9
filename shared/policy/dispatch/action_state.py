"""What the leader knows of one unanswered action, and the steps it may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.policy.elastic.scheduling import Scalable
from shared.policy.model.formulation import TRANSITIONS, EndedAs, Request, StageAct, State, Work
from shared.policy.model.reports import Ended
from shared.policy.order.ebf import EbfKey
from shared.policy.order.lanes import Lane
from shared.policy.resources.ledger import Node


class InvalidTransition(AssertionError):
    """The state machine was asked for a step its table does not have. The message tells the action's story."""


@dataclass(slots=True)
class ActionState:
    """One action from journal to answer. Times are absolute seconds."""

    request: Request
    state: State = "queued"
    stage: int = 0
    attempt: int = 0
    """Of the newest grant in this stage; 0 before the first."""
    node: str = ""
    """Where it is granted; empty while queued."""
    booked: bool = False
    """Its units are taken on that node. Not so while only the store says that a former leader had granted it there."""
    ahead: bool = False
    """Granted ahead: it stands in its node's line and holds no units yet."""
    short: bool = False
    """It holds units and is expected to give them back in a moment."""
    recalls: int = 0
    """Attempts of this stage that were taken back before they had begun."""
    postponed: str = ""
    """Why its node asked to try later, the last time that it did."""
    serial: int = 0
    """Of the grant; orders grants against inventories."""
    queued_s: float = 0.0
    """When this stage could have begun; of the first, the arrival."""
    granted_s: float = 0.0
    started_s: float = 0.0
    """Since when its newest attempt executes, as far as we heard; 0 while nothing says that it does."""
    expected_s: float = 0.0
    """Of execution, as predicted when this stage was queued, and again when it was granted."""
    expected_end_s: float = 0.0
    acts: list[StageAct] = field(default_factory=list)
    cancel_as: EndedAs = "cancelled"
    """How it is answered when the node confirms a revocation."""
    cancel_reason: str = ""
    story: list[str] = field(default_factory=list)
    """States it has gone through, for the crash report; bounded by attempts and stages."""
    work: Work = field(init=False)
    """The stage it is in."""
    pool_units: int = field(init=False)
    """The fewest units it takes of its pool's resource."""
    units: Mapping[str, int] = field(init=False)
    """What it takes of its node while it runs: the fewest, until it is granted more."""
    begins: bool = False
    """Granted now, it would begin its trajectory's environment."""
    scales: bool = field(init=False)
    """It may be granted more than the fewest units, and how that would shorten it is known."""
    scalable: Scalable | None = None
    """What it lasts on each of its amounts, as last asked for."""
    lane: Lane | None = None
    """Where it waits; where it last waited, while it is granted."""
    key: EbfKey = field(init=False)
    """Its place in the order there."""
    resource: str = field(init=False)
    """Its pool's, the key elasticity resource."""
    duration_key: tuple[str, str, str] = field(init=False)
    """What its duration is learned under."""

    def __post_init__(self) -> None:
        self.enter(self.stage, self.attempt)

    def enter(self, stage: int, attempt: int) -> None:
        """Stand in this stage after so many attempts at it."""
        work = self.request.stages[stage]
        self.stage, self.attempt, self.work = stage, attempt, work
        self.recalls = 0
        self.units, self.scalable = work.units, None
        self.scales = work.elasticity is not None and len(work.amounts) > 1
        self.resource = work.pool.partition("@")[0]
        self.pool_units = work.units.get(self.resource, 0)
        kind = f"{work.kind} scaled" if self.scales else work.kind  # another sort of work, as a rule far longer
        self.duration_key = (self.request.tenant, self.request.task, kind)

    @property
    def wanted_units(self) -> int:
        """Units of its pool's resource to own for it: the fewest, and outside batches all it could use.

        What is outside batches nobody else foresees; a batch's elastic work grows into what is owned anyway.
        """
        return self.work.amounts[-1] if self.scales and not self.request.batch else self.pool_units

    @property
    def granted_units(self) -> int:
        """Of its pool's resource."""
        return self.units.get(self.resource, 0)

    @property
    def needs(self) -> Mapping[str, int]:
        """Units a node must have free for it: with what its environment will hold, where it begins one."""
        need = self.request.need
        return need.begun_by(self.units) if self.begins and need is not None else self.units

    def could_run_on(self, node: Node) -> bool:
        """Could that node take it when it owned everything and were empty?"""
        need = self.request.need
        if self.begins and need is not None and need.kind not in node.kinds:
            return False
        return node.could_ever(self.work.kind, self.needs)

    @property
    def is_last(self) -> bool:
        """No stage comes after this one."""
        return self.stage + 1 == len(self.request.stages)

    def spent(self, now: float, end: Ended | None = None) -> tuple[float, float]:
        """Seconds of this stage so far: (queueing, execution), together no more than have passed since it was queued.

        Queueing is all that came before its last attempt began, so attempts that were lost are part of it. An attempt
        may have begun before we granted it (a former leader did, or it is older than the newest grant): what its
        execution took is not counted as queueing as well.

        Args:
            now: absolute seconds.
            end: an attempt's end, as its node tells it; None: it goes by what was heard of the newest attempt.
        """
        passed_s = max(0.0, now - self.queued_s)
        if end is None:
            executed_s = min(now - self.started_s, passed_s) if self.started_s else 0.0
            waited_s = passed_s
        else:
            executed_s = end.execution_s
            waited_s = (self.granted_s or now) - self.queued_s + end.queue_s
        return max(0.0, min(waited_s, passed_s - executed_s)), executed_s

    def scored(self, now: float, end: Ended) -> None:
        """This stage has a verdict: keep what it took. What follows counts from now on."""
        queue_s, execution_s = self.spent(now, end)
        act = StageAct(self.work.name, queue_s, execution_s, end.node, max(1, self.attempt), self.granted_units)
        self.acts.append(act)
        self.queued_s, self.granted_s, self.started_s = now, 0.0, 0.0

    def ungranted(self) -> None:
        """Its grant never left: as if it had waited on."""
        assert self.state == "granted", f"{self.request.id} is {self.state}"
        self.story.pop()
        self.state = "queued"
        self.granted_s = 0.0

    def move(self, state: State) -> None:
        """Take one step of the table.

        Raises:
            InvalidTransition: the table has no such step; nothing has changed.
        """
        if state not in TRANSITIONS[self.state]:
            raise InvalidTransition(f"{self.request.id}: {' -> '.join([*self.story, self.state])} -> {state}?")
        self.story.append(self.state)
        self.state = state
        if state == "queued":
            self.started_s = 0.0
