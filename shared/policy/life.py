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
    serial: int = 0
    """Of the grant; orders grants against inventories."""
    queued_s: float = 0.0
    granted_s: float = 0.0
    expected_end_s: float = 0.0
    acts: list[StageAct] = field(default_factory=list)
    cancel_as: EndedAs = "cancelled"
    """How it is answered when the node confirms a revocation."""
    cancel_reason: str = ""
    story: list[str] = field(default_factory=list)
    """States it has gone through, for the crash report; bounded by attempts and stages."""

    @property
    def work(self) -> Work:
        """The stage it is in."""
        return self.request.stages[self.stage]

    @property
    def duration_key(self) -> tuple[str, str, str]:
        """What its duration is learned under."""
        return self.request.tenant, self.request.task, self.work.kind

    @property
    def pool_units(self) -> int:
        """Units it takes of its pool's resource."""
        return self.work.units.get(self.work.pool.partition("@")[0], 0)

    def move(self, state: State) -> None:
        """Take one step of the table.

        Raises:
            InvalidTransition: the table has no such step; nothing has changed.
        """
        if state not in TRANSITIONS[self.state]:
            raise InvalidTransition(f"{self.request.id}: {' -> '.join([*self.story, self.state])} -> {state}?")
        self.story.append(self.state)
        self.state = state
