"""What the leader knows of one unanswered action, and the steps it may take."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.policy.formulation import TRANSITIONS, EndedAs, Request, StageAct, State, Work


class InvalidTransition(AssertionError):
    """The state machine was asked for a step its table does not have. The message tells the action's story."""


@dataclass(slots=True)
class Life:
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
    serial: int = 0
    """Of the grant; orders grants against inventories."""
    queued_s: float = 0.0
    granted_s: float = 0.0
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
    """Units it takes of its pool's resource."""
    duration_key: tuple[str, str, str] = field(init=False)
    """What its duration is learned under."""

    def __post_init__(self) -> None:
        self.enter(self.stage, self.attempt)

    def enter(self, stage: int, attempt: int) -> None:
        """Stand in this stage after so many attempts at it."""
        work = self.request.stages[stage]
        self.stage, self.attempt, self.work = stage, attempt, work
        self.recalls = 0
        self.pool_units = work.units.get(work.pool.partition("@")[0], 0)
        self.duration_key = (self.request.tenant, self.request.task, work.kind)

    @property
    def is_last(self) -> bool:
        """No stage comes after this one."""
        return self.stage + 1 == len(self.request.stages)

    def move(self, state: State) -> None:
        """Take one step of the table.

        Raises:
            InvalidTransition: the table has no such step; nothing has changed.
        """
        if state not in TRANSITIONS[self.state]:
            raise InvalidTransition(f"{self.request.id}: {' -> '.join([*self.story, self.state])} -> {state}?")
        self.story.append(self.state)
        self.state = state
