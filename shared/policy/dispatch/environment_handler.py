"""Consequences of the creation, close and loss of environments.

Law: a trajectory acts in one environment, and never in a new one after that has ended. An environment that could not be
created has not ended: another attempt may create it, on any node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.policy.dispatch.cancellations import Cancellations
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.model.formulation import (
    CloseEnvironment,
    Command,
    EnvironmentNeed,
    ForgetTrajectory,
    TrajectoryEnd,
)
from shared.policy.model.reports import Ended
from shared.policy.resources.ledger import Node


@dataclass(slots=True)
class EnvironmentHandler:
    """Ends trajectories with their environments, and answers the actions that wait for them."""

    cluster: ClusterState
    cancellations: Cancellations

    def close(self, now: float, trajectory: str) -> list[Command]:
        """Close a trajectory: cancel its unanswered actions and end its environment."""
        trajectories, reason = self.cluster.trajectories, "the trajectory was closed"
        trajectories.end(trajectory, reason)
        commands = self.cancellations.end_trajectory(now, trajectory, "cancelled", reason)
        placement = self.cluster.environments.placements.get(trajectory)
        if placement is None:
            return [*commands, ForgetTrajectory(trajectory, "closed", reason)]
        placement.closing = True
        if placement.node in self.cluster.nodes.present:
            commands.append(CloseEnvironment(placement.node, trajectory))
        return commands

    def end(self, now: float, trajectory: str, ended: TrajectoryEnd, reason: str) -> list[Command]:
        """Remove the placement of an ended environment, end its trajectory, and answer the actions that wait for it."""
        known = self.cluster.trajectories
        placement = self.cluster.remove_environment(trajectory)
        if placement is None and trajectory in known.ended:
            return []
        if placement is not None and placement.closing:
            ended, reason = "closed", known.ended.get(trajectory, reason)
        known.end(trajectory, reason)
        waiting = self.cancellations.end_trajectory(now, trajectory, "environment-lost", reason, only_queued=True)
        return [*waiting, ForgetTrajectory(trajectory, ended, reason)]

    def not_created(self, now: float, need: EnvironmentNeed, end: Ended) -> list[Command]:
        """Remove the placement of an environment that an attempt could not create, so that another attempt may begin it
        elsewhere.
        """
        trajectory, node = need.trajectory, self.cluster.nodes.present.get(end.node)
        if node is not None and end.result.status == "lost" and need.image:
            node.images.creation_failed(need.image, now)
        placement = self.cluster.environments.placements.get(trajectory)
        if placement is None or placement.node != end.node or placement.closing:
            return []
        self.cluster.remove_environment(trajectory)
        return [ForgetTrajectory(trajectory, "unmade", end.result.reason)]

    def reconcile(
        self, now: float, node: Node, environments: Mapping[str, Mapping[str, int]], asked: int
    ) -> list[Command]:
        """Reconcile with a node's inventory, complete up to the grant of serial `asked`."""
        end, lost = self.cluster.environments.reconcile(node, environments, asked)
        commands: list[Command] = [CloseEnvironment(node.name, trajectory) for trajectory in end]
        for trajectory in lost:
            commands += self.end(now, trajectory, "lost", f"{node.name} no longer has its environment")
        return commands

    def expire_absent(self, now: float, grace_s: float) -> list[Command]:
        """End the environments whose node has been away for longer than `grace_s`."""
        commands: list[Command] = []
        for trajectory, placement in list(self.cluster.environments.away(now, grace_s)):
            commands += self.end(now, trajectory, "lost", f"its node {placement.node} has not come back")
        return commands
