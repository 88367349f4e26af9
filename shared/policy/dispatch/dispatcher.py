"""State machine of the dispatcher: queues + nodes + grants. Stimulus in, commands out.

Laws, held by tests/shared/policy/dispatch/test_dispatch_machine.py over random histories:
  - every request is answered exactly once, whatever happens to nodes, leaders and clients (`action_registry`);
  - no unit is granted twice: units are free again only after the node's report or the end of its incarnation, also the
    units of an attempt that is no longer needed (`resources.ledger`);
  - a verdict (`ok`, `timeout`) is never invented: infrastructure failures have their own names (`attempt_handler`);
  - work that is not repeatable is never executed twice (`attempt_handler`);
  - a trajectory runs one action at a time, in one environment, and never in a new one after that has ended
    (`trajectories`, `environment_handler`).
The law in `scheduling_round` defines the order of grants.

Times are absolute seconds of one monotonic scale, the one of the journal's ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field

from shared.policy.dispatch.action_registry import ActionRegistry
from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.attempt_handler import AttemptHandler
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.environment_handler import EnvironmentHandler
from shared.policy.dispatch.environment_placements import Placement
from shared.policy.dispatch.node_handler import NodeHandler
from shared.policy.dispatch.scheduling_round import park_stuck, schedule
from shared.policy.dispatch.start_predictor import StartPredictor
from shared.policy.model.formulation import Command, Request, StageAct, TrajectoryEnd
from shared.policy.model.reports import Ended, HeldGrants
from shared.policy.resources.ledger import Node


@dataclass(slots=True)
class Dispatcher:
    """Dispatcher of the leader. Every stimulus takes the time and returns the commands that follow, in order.

    The parts derive the consequences of a stimulus; then one scheduling round grants what fits.
    """

    max_attempts: InitVar[int] = 3
    node_lost_s: float = 10.0
    """Seconds of silence after which a node is lost; its work runs elsewhere."""
    linger_s: float = 10.0
    """Seconds for which units for work outside batches stay owned after the work has ended."""
    overdue_s: float = 15.0
    """Seconds after its timeout at which a grant without outcome makes the leader ask the node for an inventory."""
    placement_lost_s: float = 60.0
    """Seconds after which environments of an absent node are lost; until then it may bring them back."""
    cluster: ClusterState = field(default_factory=ClusterState)
    registry: ActionRegistry = field(init=False)
    environments: EnvironmentHandler = field(init=False)
    attempts: AttemptHandler = field(init=False)
    nodes: NodeHandler = field(init=False)
    _window_s: float = 0.0

    def __post_init__(self, max_attempts: int) -> None:
        self.registry = ActionRegistry(self.cluster)
        self.environments = EnvironmentHandler(self.cluster, self.registry)
        self.attempts = AttemptHandler(self.cluster, self.registry, self.environments, max_attempts)
        self.nodes = NodeHandler(self.cluster, self.registry, self.attempts, self.environments)

    def _schedule(self, now: float, commands: list[Command]) -> list[Command]:
        """Return these commands and those of a scheduling round after them."""
        return commands + schedule(self.cluster, now)

    # ---- requests ----------------------------------------------------------------------------------------------

    def submitted(self, now: float, requests: Iterable[Request]) -> list[Command]:
        """Handle new entries of the journal, in its order. Ids already known are skipped (the journal is read again).

        A request whose predicted start is after its `start_by_s` is rejected, unless it can start at once.
        """
        late: list[ActionState] = []
        lost: list[Command] = []
        starts = StartPredictor(self.cluster, now)
        for request in requests:
            if request.id in self.registry.actions:
                continue
            action = self.registry.add(request)
            if (reason := self.cluster.trajectories.end_of(request.need)) is not None:
                lost.append(self.registry.answer(now, action, "environment-lost", reason))
                continue
            if request.start_by_s is not None and not starts.in_time(action, request.start_by_s):
                late.append(action)
            self.cluster.queues.enqueue(action)
            park_stuck(self.cluster, action)
        commands = self._schedule(now, lost)
        return self._schedule(now, commands + self._reject(now, late)) if late else commands

    def _reject(self, now: float, late: list[ActionState]) -> list[Command]:
        """Answer the requests that would start too late and have not been granted at once."""
        reason = "it would start after its deadline: the pool is busy"
        return [
            self.registry.answer_queued(now, action, "expired", reason) for action in late if action.state == "queued"
        ]

    def restored(
        self, now: float, action_id: str, stage: int, attempt: int, acts: Iterable[StageAct], node: str
    ) -> None:
        """Restore an unanswered action of a former leader from the store.

        Call it after the action was submitted and before any node is ready. `node`: node of its last grant; "" if it
        has none. The action waits for that node's outcome, inventory or loss, and is granted nowhere before.
        """
        action = self.registry.actions[action_id]
        self.cluster.queues.remove(action)
        action.enter(stage, attempt)
        action.acts = list(acts)
        action.queued_s += sum(act.queue_s + act.execution_s for act in action.acts)
        self.cluster.queues.enqueue(action)
        if node:
            self.cluster.await_node(action, node, now)

    def cancelled(self, now: float, action_id: str, reason: str) -> list[Command]:
        """Cancel an action. A queued one is answered; a granted one is revoked and answered when the node confirms."""
        return self._schedule(now, self.registry.cancel(now, [action_id], reason))

    def batch_cancelled(self, now: float, batch: str, reason: str) -> list[Command]:
        """Cancel the unanswered actions of a batch."""
        return self._schedule(now, self.registry.cancel(now, self.registry.members(batch), reason))

    def completion_expected(self, batch: str, at_s: float) -> None:
        """Apply the planner's new estimate of T: the batch's queued requests move in the order."""
        self.cluster.queues.rekey(batch, at_s)

    # ---- attempts ----------------------------------------------------------------------------------------------

    def started(self, now: float, action_id: str, attempt: int) -> None:
        """An attempt has started to execute."""
        self.attempts.started(now, action_id, attempt)

    def finished(self, now: float, ends: Iterable[Ended]) -> list[Command]:
        """Handle ended attempts."""
        commands: list[Command] = []
        for end in ends:
            commands += self.attempts.ended(now, end)
        return self._schedule(now, commands)

    # ---- trajectories ------------------------------------------------------------------------------------------

    def trajectory_closed(self, now: float, trajectory: str) -> list[Command]:
        """Close a trajectory for its trainer: cancel its unanswered actions and end its environment."""
        return self._schedule(now, self.environments.close(now, trajectory))

    def environment_created(self, now: float, node: str, incarnation: str, trajectory: str) -> list[Command]:
        """A node reports a new environment whose first action still executes: another may start."""
        known = self.cluster.nodes.incarnation(node, incarnation)
        if known is None or not self.cluster.environments.created(trajectory, node):
            return []
        return self._schedule(now, [])

    def environment_ended(
        self, now: float, node: str, incarnation: str, trajectory: str, ended: TrajectoryEnd, reason: str
    ) -> list[Command]:
        """A node reports the end of an environment, after the outcomes of its actions."""
        environments, known = self.cluster.environments, self.cluster.nodes.incarnation(node, incarnation)
        if known is None or environments.remove_orphan(node, trajectory):
            return self._schedule(now, [])
        placement = environments.placements.get(trajectory)
        if placement is None or placement.node != node:
            return []
        return self._schedule(now, self.environments.end(now, trajectory, ended, reason))

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
        return self.nodes.pull(now, images, node_class, kind, units)

    def trajectory_placed(self, trajectory: str, node: str, units: Mapping[str, int]) -> None:
        """Restore a placement of a former leader from the store. Call it before any request or node is added.

        The node's inventory decides about it; if the node does not return, the environment is lost.
        """
        closing = trajectory in self.cluster.trajectories.ended
        self.cluster.environments.add(trajectory, Placement(node, units, closing=closing))

    def trajectory_ended(self, trajectory: str, reason: str) -> None:
        """Restore an ended trajectory from the store. Call it before `trajectory_placed` and any request."""
        self.cluster.trajectories.end(trajectory, reason)

    # ---- nodes -------------------------------------------------------------------------------------------------

    def node_joined(self, now: float, node: Node) -> list[Command]:
        """A node has started, or a new leader reads its hello. It gets no grants before its inventory is read.

        A repeated hello of the same incarnation may offer more kinds than before.
        """
        commands = self.nodes.joined(now, node)
        return [] if commands is None else self._schedule(now, commands)

    def node_seen(self, now: float, name: str, incarnation: str) -> bool:
        """Handle a heartbeat. False: this incarnation is unknown, so its hello must be read again."""
        return self.nodes.seen(now, name, incarnation)

    def node_lost(self, now: float, name: str, why: str) -> list[Command]:
        """Handle the end of an incarnation: what it held is lost."""
        if name not in self.cluster.nodes.present:
            return []
        return self._schedule(now, self.attempts.lost_with(now, name, why))

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
        commands = self.nodes.inventory_taken(now, name, incarnation, held, environments or {})
        return [] if commands is None else self._schedule(now, commands)

    def images_changed(
        self, now: float, name: str, incarnation: str, here: Iterable[str], gone: Iterable[str]
    ) -> list[Command]:
        """A node reports images added and removed since its last report. Postponed actions that need an added image are
        queued again.
        """
        requeued = self.nodes.images_changed(now, name, incarnation, set(here), gone)
        return self._schedule(now, []) if requeued else []

    # ---- planner and time --------------------------------------------------------------------------------------

    def targeted(self, now: float, pool: str, units: int) -> list[Command]:
        """Set the planner's target for a pool."""
        self.cluster.queues.pool(pool).target = units
        self.cluster.queues.dirty.add(pool)
        return self._schedule(now, [])

    def planned(self, now: float, planned: bool) -> list[Command]:
        """Set whether a planner is alive; reported periodically, and assumed until the first report.

        Without one, targets stay and a zero-queue rule adds to them. When it is back, the targets apply alone again.
        """
        self.cluster.queues.set_planned(planned)
        return self._schedule(now, [])

    def ticked(self, now: float) -> list[Command]:
        """Handle everything that depends on time: deadlines, silent nodes, overdue grants, linger windows."""
        commands = self.registry.expire(now)
        commands += self.nodes.check_silence(now, self.node_lost_s, self.overdue_s)
        commands += self.attempts.recall(now)
        commands += self.attempts.lost_without_report(now, self.node_lost_s)
        commands += self.environments.expire_absent(now, self.placement_lost_s)
        self.cluster.queues.requeue_due(now)
        if now - self._window_s >= self.linger_s:
            self._window_s = now
            self.cluster.queues.next_window()
        return self._schedule(now, commands)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        self.registry.check()
        self.cluster.check()
