"""Cancellations of many actions: of a cancelled batch, a closed trajectory, a lost environment.

Laws:
  - one turn ends at most `DispatchConfig.most_ended` actions for them, and the first of each trajectory; the rest
    follows in later turns, cancellations in turn;
  - meanwhile none of these actions is granted: a batch is withdrawn from the order, and the later actions of an ended
    trajectory stay behind its first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.policy.dispatch.action_registry import ActionRegistry
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.model.formulation import Command, EndedAs, Request

SHARE = 64
"""Actions of one cancellation before the next one follows."""


@dataclass(slots=True)
class Cancellation:
    """Actions that are still to be ended."""

    ended: EndedAs
    reason: str
    actions: list[str]
    """The next one last."""
    only_queued: bool
    """Attempts are not revoked, because they end by themselves."""


@dataclass(slots=True)
class Cancellations:
    """Cancellations under way, of batches and of trajectories. A turn begins with `begin_turn`."""

    cluster: ClusterState
    registry: ActionRegistry
    most: int
    _batches: dict[str, Cancellation] = field(default_factory=dict)
    _trajectories: dict[str, Cancellation] = field(default_factory=dict)
    _left: int = field(init=False)
    """Actions that may still be ended in this turn."""

    def __post_init__(self) -> None:
        self._left = self.most

    def __bool__(self) -> bool:
        return bool(self._batches or self._trajectories)

    def __contains__(self, name: object) -> bool:
        """Return whether actions of this batch or trajectory are still to be ended."""
        return name in self._batches or name in self._trajectories

    def begin_turn(self, now: float) -> list[Command]:
        """Begin a turn with the next part."""
        self._left = self.most
        return self._go_on(now)

    def cancel_batch(self, now: float, batch: str, reason: str) -> list[Command]:
        """Cancel the actions of a batch. O(actions), 1 us each, beside the cost of `most` answers."""
        if batch in self._batches:
            return []
        members = self.registry.members(batch)
        self._batches[batch] = Cancellation("cancelled", reason, members[::-1], only_queued=False)
        commands = self._go_on(now)
        if batch in self._batches:
            self.cluster.queues.withdraw(batch)
        return commands

    def end_trajectory(
        self, now: float, trajectory: str, ended: EndedAs, reason: str, *, only_queued: bool = False
    ) -> list[Command]:
        """End the actions of a trajectory, which has been recorded as ended."""
        turn = list(self.cluster.trajectories.turns.get(trajectory, ()))
        commands = self._end(now, turn[:1], Cancellation(ended, reason, [], only_queued))
        if trajectory not in self._trajectories and len(turn) > 1:
            self._trajectories[trajectory] = Cancellation(ended, reason, turn[:0:-1], only_queued)
        return commands + self._go_on(now)

    def submitted(self, request: Request) -> None:
        """Also cancel an action that is submitted while its batch is being cancelled."""
        if request.batch in self._batches:
            self._batches[request.batch].actions.insert(0, request.id)

    def _go_on(self, now: float) -> list[Command]:
        commands: list[Command] = []
        for waiting in (self._trajectories, self._batches):
            while self._left and waiting:
                name = next(iter(waiting))
                one = waiting.pop(name)
                part = [one.actions.pop() for _ in range(min(SHARE, self._left, len(one.actions)))]
                self._left -= len(part)
                commands += self._end(now, part, one)
                if one.actions:
                    waiting[name] = one
                elif waiting is self._batches:
                    self.cluster.queues.withdrawn.discard(name)
        return commands

    def _end(self, now: float, actions: Iterable[str], one: Cancellation) -> list[Command]:
        if one.only_queued:
            known = self.registry.actions
            actions = [name for name in actions if name in known and known[name].state == "queued"]
        return self.registry.cancel(now, actions, one.reason, one.ended)
