"""State machine of the dispatcher: queues + nodes + grants. Stimulus in, commands out.

Laws, held by tests/shared/policy/dispatch/test_dispatch_machine.py over random histories:
  - every request is answered exactly once, whatever happens to nodes, leaders and clients;
  - no unit is granted twice: units are free again only after the node's report or the end of its incarnation, also the
    units of an attempt that is no longer needed;
  - a verdict (`ok`, `timeout`) is never invented: infrastructure failures have their own names;
  - work that is not repeatable is never executed twice;
  - a trajectory runs one action at a time, in one environment, and never in a new one after that has ended.
The law in `scheduling_round` defines the order of grants.

Times are absolute seconds of one monotonic scale, the one of the journal's ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.placement import place_pull
from shared.policy.dispatch.scheduling_round import park_stuck, schedule
from shared.policy.dispatch.starts import Starts
from shared.policy.dispatch.steps import Steps
from shared.policy.dispatch.trajectories import Placement
from shared.policy.model.formulation import (
    CloseEnvironment,
    Command,
    ForgetTrajectory,
    PullImage,
    Request,
    Revoke,
    StageAct,
    TrajectoryEnd,
)
from shared.policy.model.reports import Ended, HeldGrant, HeldGrants, holds
from shared.policy.resources.ledger import Node

__all__ = ["Dispatcher", "Ended", "HeldGrant"]


@dataclass(slots=True)
class Dispatcher(Steps):
    """Dispatcher of the leader. Every stimulus takes the time and returns the commands that follow, in order."""

    # ---- requests ----------------------------------------------------------------------------------------------

    def submitted(self, now: float, requests: Iterable[Request]) -> list[Command]:
        """Handle new entries of the journal, in its order. Ids already known are skipped (the journal is read again).

        A request whose predicted start is after its `start_by_s` is rejected, unless it can start at once.
        """
        late: list[ActionState] = []
        lost: list[Command] = []
        starts = Starts(self.cluster, now)
        for request in requests:
            if request.id in self.actions:
                continue
            action = self.actions[request.id] = ActionState(request, queued_s=request.arrival[0] / 1000)
            if request.batch:
                self._members.setdefault(request.batch, set()).add(request.id)
            self._deadlines.push(request.deadline_s, request.id)
            need = request.need
            if need is not None:
                self.cluster.trajectories.queue_up(need.trajectory, request.id)
                if (reason := self.cluster.trajectories.ended.get(need.trajectory)) is not None:
                    lost.append(self._answer(now, action, "environment-lost", reason))
                    continue
            by_s = request.start_by_s
            if by_s is not None and not starts.by(action, by_s):
                late.append(action)
            self.cluster.enqueue(action)
            park_stuck(self.cluster, action)
        commands = [*lost, *schedule(self.cluster, now)]
        for action in late:
            if action.state == "queued":
                self.cluster.dequeue(action)
                reason = "it would start after its deadline: the pool is busy"
                commands.append(self._answer(now, action, "expired", reason))
        return commands + schedule(self.cluster, now) if late else commands

    def resumed(
        self, now: float, action_id: str, stage: int, attempt: int, acts: Iterable[StageAct], node: str
    ) -> None:
        """Restore what the store says of an unanswered action of a former leader.

        Call it after the action was submitted and before any node is ready. `node`: node of its last grant; "" if it
        has none. The action waits for that node's outcome, inventory or loss, and is granted nowhere before.
        """
        action = self.actions[action_id]
        self.cluster.dequeue(action)
        action.enter(stage, attempt)
        action.acts = list(acts)
        action.queued_s += sum(act.queue_s + act.execution_s for act in action.acts)
        self.cluster.enqueue(action)
        if node:
            self.cluster.await_node(action, node, now)

    def cancelled(self, now: float, action_id: str, reason: str) -> list[Command]:
        """Cancel an action. A queued one is answered; a granted one is revoked and answered when the node confirms."""
        return self._cancel(now, [action_id], reason) + schedule(self.cluster, now)

    def batch_cancelled(self, now: float, batch: str, reason: str) -> list[Command]:
        """Cancel the unanswered actions of a batch."""
        return self._cancel(now, sorted(self._members.get(batch, ())), reason) + schedule(self.cluster, now)

    def completion_expected(self, batch: str, at_s: float) -> None:
        """Apply the planner's new estimate of T: the batch's queued requests move in the order."""
        self.cluster.rekey(batch, at_s)

    # ---- trajectories ------------------------------------------------------------------------------------------

    def trajectory_closed(self, now: float, trajectory: str) -> list[Command]:
        """Close a trajectory for its trainer: cancel its unanswered actions and end its environment."""
        known = self.cluster.trajectories
        reason = "the trajectory was closed"
        known.end(trajectory, reason)
        # The last first, so that no later action begins meanwhile.
        commands = self._cancel(now, list(known.turns.get(trajectory, ()))[::-1], reason)
        placement = known.placements.get(trajectory)
        if placement is None:
            return [*commands, ForgetTrajectory(trajectory, "closed", reason), *schedule(self.cluster, now)]
        placement.closing = True
        if placement.node in self.cluster.nodes:
            commands.append(CloseEnvironment(placement.node, trajectory))
        return commands + schedule(self.cluster, now)

    def environment_made(self, now: float, node: str, incarnation: str, trajectory: str) -> list[Command]:
        """A node reports a new environment whose first action still executes: another may start."""
        known = self.cluster.nodes.get(node)
        if known is None or known.incarnation != incarnation or not self.cluster.made(trajectory, node):
            return []
        return schedule(self.cluster, now)

    def environment_ended(
        self, now: float, node: str, incarnation: str, trajectory: str, ended: TrajectoryEnd, reason: str
    ) -> list[Command]:
        """A node reports the end of an environment, after the outcomes of its actions."""
        known = self.cluster.nodes.get(node)
        if known is None or known.incarnation != incarnation or self.cluster.evicted(node, trajectory):
            return schedule(self.cluster, now)
        placement = self.cluster.trajectories.placements.get(trajectory)
        if placement is None or placement.node != node:
            return []
        return self._moved_out(now, trajectory, ended, reason) + schedule(self.cluster, now)

    def environments_expected(
        self, now: float, images: Iterable[str], node_class: str, kind: str, units: Mapping[str, int]
    ) -> list[Command]:
        """Handle a hint that one environment of each of these images will be needed. A missing image is pulled to the
        node where its environment is predicted to be placed.

        Args:
            now: the time.
            images: names as container engines list them.
            node_class: class of nodes; empty: any class.
            kind: capability that a node needs to make such an environment.
            units: units that each will hold of its node.
        """
        nodes = [node for _, node in sorted(self.cluster.nodes.items()) if node_class in ("", node.node_class)]
        pulls = [(place_pull(nodes, image, kind, units, now), image) for image in images]
        return [PullImage(node.name, image) for node, image in pulls if node is not None]

    def images_changed(
        self, now: float, name: str, incarnation: str, here: Iterable[str], gone: Iterable[str]
    ) -> list[Command]:
        """A node reports images added and removed since its last report. Postponed actions that need an added image are
        queued again.
        """
        node = self.cluster.nodes.get(name)
        if node is None or node.incarnation != incarnation:
            return []
        came = set(here)
        node.images.changed(came, gone)
        return schedule(self.cluster, now) if came and self.cluster.resume(now, came) else []

    def trajectory_placed(self, trajectory: str, node: str, units: Mapping[str, int]) -> None:
        """Restore a placement of a former leader from the store. Call it before any request or node is added.

        The node's inventory decides about it; if the node does not return, the environment is lost.
        """
        closing = trajectory in self.cluster.trajectories.ended
        self.cluster.trajectories.settle(trajectory, Placement(node, units, closing=closing))

    def trajectory_ended(self, trajectory: str, reason: str) -> None:
        """Restore an ended trajectory from the store. Call it before `trajectory_placed` and any request."""
        self.cluster.trajectories.end(trajectory, reason)

    # ---- nodes -------------------------------------------------------------------------------------------------

    def node_said_hello(self, now: float, node: Node) -> list[Command]:
        """A node has started, or a new leader reads its hello. It gets no grants before its inventory is read.

        A repeated hello of the same incarnation may offer more kinds than before.
        """
        known = self.cluster.nodes.get(node.name)
        if known is not None and known.incarnation == node.incarnation:
            known.seen_s = now
            if node.kinds <= known.kinds:
                return []
            known.kinds |= node.kinds
            self.cluster.nodes_changed()
            return schedule(self.cluster, now)
        commands = self._dropped(now, node.name, "it has restarted", booked_only=True)
        node.seen_s = now
        self.cluster.add_node(node)
        return [*commands, self._ask(node, now), *schedule(self.cluster, now)]

    def node_seen(self, now: float, name: str, incarnation: str) -> bool:
        """Handle a heartbeat. False: this incarnation is unknown, so its hello must be read again."""
        node = self.cluster.nodes.get(name)
        if node is None or node.incarnation != incarnation:
            return False
        node.seen_s = now
        return True

    def node_lost(self, now: float, name: str, why: str) -> list[Command]:
        """Handle the end of an incarnation: what it held is lost."""
        return self._dropped(now, name, why) + schedule(self.cluster, now) if name in self.cluster.nodes else []

    def inventory_taken(
        self,
        now: float,
        name: str,
        incarnation: str,
        held: HeldGrants,
        environments: Mapping[str, Mapping[str, int]] | None = None,
    ) -> list[Command]:
        """Handle a node's inventory. Held and unanswered: adopted. Not wanted: revoked. Granted but not held: lost.

        `environments`: trajectory -> units that its environment holds there; unknown ones are closed.
        """
        node = self.cluster.nodes.get(name)
        asked = node.answered() if node is not None and node.incarnation == incarnation else None
        if node is None or asked is None:
            return []
        commands: list[Command] = []
        for action_id, holding in held.items():
            if not self.cluster.reconcile(now, node, self.actions.get(action_id), action_id, holding):
                commands.append(Revoke(action_id, name, holding.attempt))
            elif not holding.waits:
                self.actions[action_id].started_s = now - holding.running_s
        for action in list(self.cluster.granted.get(name, {}).values()):
            if action.serial <= asked and not holds(held, action.request.id, action.stage, action.attempt):
                self.cluster.release(action)
                commands += self._lost(now, action, "node-lost", f"{name} no longer has it")
        for action_id, orphan in node.orphans_until(asked):
            if not holds(held, action_id, orphan.stage, orphan.attempt):
                node.orphan_ended(action_id, orphan.stage, orphan.attempt)
        node.ready = True
        end, gone = self.cluster.take_stock(node, environments or {}, asked)
        commands += [CloseEnvironment(name, trajectory) for trajectory in end]
        for trajectory in gone:
            commands += self._moved_out(now, trajectory, "lost", f"{name} no longer has its environment")
        self.cluster.nodes_changed()
        return commands + schedule(self.cluster, now)

    def targeted(self, now: float, pool: str, units: int) -> list[Command]:
        """Set the planner's target for a pool."""
        self.cluster.pool(pool).target = units
        self.cluster.dirty.add(pool)
        return schedule(self.cluster, now)

    def planned(self, now: float, planner_lives: bool) -> list[Command]:
        """Set whether a planner is alive; reported periodically, and assumed until the first report.

        Without one, targets stay and a zero-queue rule adds to them. When it is back, the targets apply alone again.
        """
        self.cluster.planner(planner_lives)
        return schedule(self.cluster, now)

    # ---- outcomes ----------------------------------------------------------------------------------------------

    def started(self, now: float, action_id: str, attempt: int) -> None:
        """An attempt has started to execute."""
        action = self.actions.get(action_id)
        if action is not None and action.attempt == attempt and action.state == "granted":
            action.move("running")
            action.started_s = action.started_s or now

    def finished(self, now: float, ends: Iterable[Ended]) -> list[Command]:
        """Handle ended attempts.

        A verdict on the current stage counts whichever attempt brings it. Losses, refusals and cancellations count only
        for the current attempt.
        """
        commands: list[Command] = []
        for end in ends:
            commands += self._ended(now, end)
        return commands + schedule(self.cluster, now)

    def ticked(self, now: float) -> list[Command]:
        """Handle everything that depends on time: deadlines, silent nodes, overdue grants, linger windows."""
        commands: list[Command] = []
        for action_id in self._deadlines.due(now):
            commands += self._deadline(now, action_id)
        for node in list(self.cluster.nodes.values()):
            if now - node.seen_s > self.node_lost_s:
                commands += self._dropped(now, node.name, f"silent for {now - node.seen_s:.0f} s")
            elif self.cluster.is_overdue(node, now, self.overdue_s):
                commands.append(self._ask(node, now))
        for action in self.cluster.stale_prefetched(now):
            commands.append(Revoke(action.request.id, action.node, action.attempt, recall=True))
            self.cluster.orphan(action, now)
            action.move("queued")
            action.recalls += 1
            self.cluster.enqueue(action)
        for name in sorted(self.cluster.granted.keys() - self.cluster.nodes.keys()):
            for action in list(self.cluster.granted[name].values()):
                if now - action.granted_s > self.node_lost_s:
                    self.cluster.release(action)
                    commands += self._lost(now, action, "node-lost", f"{name} has not come back")
        for trajectory, placement in list(
            self.cluster.trajectories.away(self.cluster.nodes, now, self.placement_lost_s)
        ):
            commands += self._moved_out(now, trajectory, "lost", f"its node {placement.node} has not come back")
        self.cluster.resume(now)
        if now - self._window_s >= self.linger_s:
            self._window_s = now
            self.cluster.next_window()
        return commands + schedule(self.cluster, now)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        on_nodes = {name for held in self.cluster.granted.values() for name in held}
        assert on_nodes.isdisjoint(self.cluster.queued), "on a node and in a queue"
        assert on_nodes | set(self.cluster.queued) == set(self.actions), "neither on a node nor in a queue"
        batches = {action.request.batch for action in self.actions.values()}
        assert self._members.keys() == batches - {""}, "batches of what is left"
        self.cluster.check()
