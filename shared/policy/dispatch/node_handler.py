"""Consequences of nodes' reports and silence: joining, inventories, images, loss.

Law: nothing is granted on a node before its inventory is read. What an inventory holds and no request needs is revoked,
and its units stay taken until the node reports its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shared.policy.dispatch.action_registry import ActionRegistry
from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.attempt_handler import AttemptHandler
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.environment_handler import EnvironmentHandler
from shared.policy.dispatch.parking import ParkingHandler
from shared.policy.dispatch.placement import place_pull
from shared.policy.dispatch.service_stimuli import ServicesReported
from shared.policy.model.formulation import AskInventory, Command, PullImage, Revoke
from shared.policy.model.reports import HeldGrant, HeldGrants, is_listed
from shared.policy.resources.chunks import Chunks
from shared.policy.resources.ledger import Node


@dataclass(slots=True)
class NodeHandler:
    """Adds and removes nodes, and reconciles the cluster state with their inventories."""

    cluster: ClusterState
    registry: ActionRegistry
    attempts: AttemptHandler
    environments: EnvironmentHandler
    parking: ParkingHandler

    def joined(self, now: float, node: Node) -> list[Command] | None:
        """Add a node, or the kinds that a repeated hello adds. None: nothing has changed."""
        known = self.cluster.nodes.incarnation(node.name, node.incarnation)
        if known is not None:
            known.seen_s = now
            if node.kinds <= known.kinds:
                return None
            self.cluster.nodes.offer(known, node.kinds)
            self.cluster.queues.nodes_changed()
            return []
        commands = self.attempts.lost_with(now, node.name, "it has restarted", allocated_only=True)
        node.seen_s = now
        self.cluster.add_node(node)
        return [*commands, self._ask(node, now)]

    def seen(self, now: float, name: str, incarnation: str) -> bool:
        """Record a heartbeat. False: this incarnation is unknown."""
        node = self.cluster.nodes.incarnation(name, incarnation)
        if node is None:
            return False
        node.seen_s = now
        return True

    def all_seen(self, now: float) -> None:
        """Record that no node's silence until now counts."""
        for node in self.cluster.nodes.present.values():
            node.seen_s = now

    def inventory_taken(
        self,
        now: float,
        name: str,
        incarnation: str,
        held: HeldGrants,
        environments: Mapping[str, Mapping[str, int]],
    ) -> list[Command] | None:
        """Reconcile with an inventory. None: it was not requested, or is stale."""
        node = self.cluster.nodes.incarnation(name, incarnation)
        asked = node.answered() if node is not None else None
        if node is None or asked is None:
            return None
        commands = self._reconcile_held(now, node, held) + self._reconcile_missing(now, node, held, asked)
        node.become_ready()
        commands += self.environments.reconcile(now, node, environments, asked)
        self.cluster.queues.nodes_changed()
        return commands

    def _reconcile_held(self, now: float, node: Node, held: HeldGrants) -> list[Command]:
        """Adopt what the node holds, or revoke it."""
        commands: list[Command] = []
        for action_id, grant in held.items():
            action = self.registry.actions.get(action_id)
            if action is not None and _has_another(action, node, grant):  # its units are taken
                commands.append(Revoke(action_id, node.name, grant.attempt))
                continue
            if action is not None and not 0 <= grant.stage < len(action.request.stages):
                action = None  # revoked like an attempt of an unknown action
            if not self.cluster.reconcile(now, node, action, action_id, grant):
                commands.append(Revoke(action_id, node.name, grant.attempt))
            elif action is not None and not grant.queued:
                action.started_s = now - grant.running_s - grant.paused_s
                commands += self.parking.ask_again(now, action)
        return commands

    def _reconcile_missing(self, now: float, node: Node, held: HeldGrants, asked: int) -> list[Command]:
        """Give up the attempts and orphans that the node should hold and does not."""
        commands: list[Command] = []
        for action in list(self.cluster.granted.get(node.name, {}).values()):
            if action.serial <= asked and not is_listed(held, action.request.id, action.stage, action.attempt):
                self.cluster.release(action)
                commands += self.attempts.lost(now, action, "node-lost", f"{node.name} no longer has it")
        for action_id, orphan in node.orphans_until(asked):
            if not is_listed(held, action_id, orphan.stage, orphan.attempt):
                self.cluster.holds.orphan_ended(node, action_id, orphan.stage, orphan.attempt)
        if self.cluster.quotas.holds:
            self.cluster.holds.reconcile(node, held, asked)
        return commands

    def images_changed(self, now: float, name: str, incarnation: str, here: set[str], gone: Iterable[str]) -> bool:
        """Apply a report of images added and removed. Returns whether postponed actions were queued again."""
        node = self.cluster.nodes.incarnation(name, incarnation)
        if node is None:
            return False
        node.images.changed(here, gone)
        return bool(here) and self.cluster.queues.requeue_due(now, here) > 0

    def services_reported(self, now: float, report: ServicesReported) -> bool:
        """Apply a report of model services. Work that no node could run is queued again if the report may change that.

        False: this incarnation is unknown, or has no such chunks.
        """
        node = self.cluster.nodes.incarnation(report.node, report.incarnation)
        chunks = None if node is None else node.resources.get(report.resource)
        if node is None or not isinstance(chunks, Chunks):
            return False
        before = chunks.offer
        self.cluster.nodes.restores.report(report.node, report.restoring, now)
        self.cluster.nodes.unusable.report(report.node, report.problems)
        self.cluster.nodes.quarantined.report(report.node, report.quarantined)
        chunks.report(report.services, report.device_gb, report.bad, report.released)
        self.cluster.nodes.served(node)
        if chunks.offer != before:
            self.cluster.queues.nodes_changed()
        return True

    def pull(
        self, now: float, images: Iterable[str], node_class: str, kind: str, units: Mapping[str, int]
    ) -> list[Command]:
        """Choose a node to pull each expected image that is missing; see `stimuli.ImagesExpected`."""
        nodes = [node for node in self.cluster.nodes.by_name() if node_class in ("", node.node_class)]
        pulls = [(place_pull(nodes, image, kind, units, now), image) for image in images]
        return [PullImage(node.name, image) for node, image in pulls if node is not None]

    def check_silence(self, now: float, node_lost_s: float, overdue_s: float) -> list[Command]:
        """Remove silent nodes, and ask those with overdue grants for their inventories."""
        commands: list[Command] = []
        for node in list(self.cluster.nodes.present.values()):
            if now - node.seen_s > node_lost_s:
                commands += self.attempts.lost_with(now, node.name, f"silent for {now - node.seen_s:.0f} s")
            elif _is_overdue(self.cluster, node, now, overdue_s):
                commands.append(self._ask(node, now))
        return commands

    def _ask(self, node: Node, now: float) -> AskInventory:
        node.ask(self.cluster.newest_serial, now)
        return AskInventory(node.name)


def _has_another(action: ActionState, node: Node, held: HeldGrant) -> bool:
    """Return whether an action has units of a node for an attempt other than the reported one, which is not newer."""
    is_known = action.stage == held.stage and action.attempt <= held.attempt
    return action.allocated and action.node == node.name and not is_known


def _is_overdue(cluster: ClusterState, node: Node, now: float, overdue_s: float) -> bool:
    """Return whether to ask the node for another inventory; at most once in `overdue_s`."""
    if now - node.asked_s < overdue_s:
        return False
    return (
        bool(node.asked)
        or any(now - orphan.since_s > overdue_s for orphan in node.orphans.values())
        or any(_lacks_end(action, now, overdue_s) for action in cluster.granted.get(node.name, {}).values())
    )


def _lacks_end(action: ActionState, now: float, overdue_s: float) -> bool:
    """Return whether the report of its attempt's end may be lost.

    A parked attempt is not limited by its timeout, but it may end, for example with its environment. If that report is
    lost, no other report of the node is about it, and a node ignores the revocation of an attempt that has ended. So
    without an inventory the action would stay unanswered, also after its cancellation or deadline.
    """
    if not action.parked:
        return now - action.granted_s - sum(action.paused(now)) > action.work.timeout_s + overdue_s
    allowed_s = 0.0 if action.state == "cancelling" else action.work.timeout_s
    return now - action.paused_since_s > allowed_s + overdue_s
