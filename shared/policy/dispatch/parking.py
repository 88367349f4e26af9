"""Parking: a running action in an environment returns its units while it waits for something outside.

Sequence:
  1. `ParkRequested` (from outside) leads to the command `Park`. A node may also park an attempt by itself.
  2. The node freezes the environment and reports `AttemptParked`. The attempt's units (cores) are free from then on.
     The attempt, its node and what its environment holds (memory) stay. An inventory lists it as `HeldGrant.parked`,
     with the units that it needs to continue. The node counts no parked time as execution.
  3. `ResumeRequested`: it waits in the lane of its node under its old key, so order, reservations, backfill and turns
     of tenants apply to it. The request may be repeated, and may come before the report that `Park` leads to. If the
     node itself has received it, an inventory lists the attempt as `HeldGrant.resuming`.
  4. The command `Resume`: the units are its own again; the node assigns cores and thaws the environment. It gets the
     units that it had, because a process chooses its width when it starts.

Laws:
  - a parked attempt is the same attempt: it is never granted again, and no second one runs beside it;
  - it holds no units, and no units are promised to it, until `Resume`;
  - its tenant is charged for each `Resume`, with the mean of its execution times between two parks. What it was charged
    for a grant in the lane of its node and has not used is given back at the first park;
  - cancellation, the close of its trajectory, its deadline, and the loss of its node or environment end it as they
    end a running attempt.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.policy.dispatch.action_registry import ActionRegistry
from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.model.formulation import Command, Park


@dataclass(slots=True)
class ParkingHandler:
    """Applies requests to park and to continue, and nodes' reports of parked attempts."""

    cluster: ClusterState
    registry: ActionRegistry

    def ask(self, now: float, action_id: str) -> list[Command] | None:
        """Ask the node of a granted action to park it; no effect on any other action.

        Before the node's inventory only the request is recorded. One that waits for its units leaves its queue, and
        its reservation ends. None: nothing changed that a scheduling round would use.
        """
        action = self.registry.actions.get(action_id)
        if action is not None and action.state == "resuming":
            self.cluster.leave_queue(action)
            action.pause("parked", now)
            return []
        if action is None or action.state not in ("granted", "running") or action.request.need is None:
            return None
        action.asked_to_park, action.asked_to_resume = True, False
        return [Park(action_id, action.node, action.attempt)] if action.allocated else None

    def ask_again(self, now: float, action: ActionState) -> list[Command]:
        """Ask again after an inventory which shows that the action runs: a former leader may not have asked."""
        wanted = action.asked_to_park and not action.asked_to_resume
        if not wanted or action.state not in ("granted", "running"):
            return []
        return self.ask(now, action.request.id) or []

    def parked(self, now: float, action_id: str, attempt: int) -> bool:
        """Apply a node's report. False: it is about another attempt, or only the node's inventory can decide."""
        action = self.registry.actions.get(action_id)
        if action is None or action.attempt != attempt or not action.allocated or action.request.need is None:
            return False
        if action.state == "granted":
            action.move("running")
            action.started_s = action.started_s or now
        if action.state not in ("running", "cancelling"):
            return False
        resumes = action.asked_to_resume and action.state == "running"
        self.cluster.park(action, now)
        if resumes:
            self.cluster.wait_to_resume(action, now)
        action.asked_to_park = action.asked_to_resume = False
        return True

    def resume(self, now: float, action_id: str) -> bool:
        """Queue a parked action for the units that it needs to continue. False: it waits already, or is not parked."""
        action = self.registry.actions.get(action_id)
        if action is None or action.state != "parked":
            if action is not None and (action.asked_to_park or _awaits_inventory(action)):  # a report is under way
                action.asked_to_resume = True
            return False
        self.cluster.wait_to_resume(action, now)
        return True


def _awaits_inventory(action: ActionState) -> bool:
    """Return whether only its node can report if a former leader's grant runs or is parked."""
    return action.state == "granted" and not action.allocated
