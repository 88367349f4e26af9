"""Environments on nodes: their units there, and reconciliation with each node's inventory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.queues import Queues
from shared.policy.dispatch.trajectories import Placement
from shared.policy.model.formulation import STARTS
from shared.policy.resources.ledger import Node


@dataclass(slots=True)
class EnvironmentPlacements(Queues):
    """Queues, and the placements of trajectories."""

    def move_in(self, action: ActionState, node: Node, serial: int, now: float) -> None:
        """Place the environment of an action that begins it: take its units on the node."""
        need = action.request.need
        assert need is not None, f"{action.request.id} has no trajectory"
        node.take(need.held)
        node.images.begun(need.image, need.units, now)
        self.trajectories.settle(need.trajectory, Placement(node.name, need.held, serial, booked=True))
        self.move(need.trajectory)

    def made(self, trajectory: str, node: str) -> bool:
        """Release the units held only while the environment was being created. False: it was known to exist already."""
        placement = self.trajectories.placements.get(trajectory)
        if placement is None or placement.node != node or STARTS not in placement.units:
            return False
        if placement.booked:
            self.nodes[node].give_back({STARTS: placement.units[STARTS]})
        placement.units = {name: count for name, count in placement.units.items() if name != STARTS}
        return True

    def move_out(self, trajectory: str) -> Placement | None:
        """Remove the placement of an ended environment and free its units. Returns the placement."""
        placement = self.trajectories.leave(trajectory)
        if placement is not None and placement.booked:
            self.nodes[placement.node].give_back(placement.units)
        self.move(trajectory)
        return placement

    def evicted(self, node: str, trajectory: str) -> bool:
        """Remove an orphaned environment that has ended and free its units. False: no such orphan is known."""
        units = self.trajectories.orphans.pop((node, trajectory), None)
        if units is not None and node in self.nodes:
            self.nodes[node].give_back(units)
        return units is not None

    def take_stock(
        self, node: Node, environments: Mapping[str, Mapping[str, int]], asked: int
    ) -> tuple[list[str], list[str]]:
        """Reconcile with a node's inventory of environments, complete up to the grant of serial `asked`.

        Returns two lists: environments it must end (unknown, closed, or of trajectories placed elsewhere), and those it
        has lost.
        """
        known, end = self.trajectories, []
        for trajectory, units in sorted(environments.items()):
            placement = known.placements.get(trajectory)
            if placement is None or placement.node != node.name:
                if (node.name, trajectory) not in known.orphans:
                    node.take(units)
                    known.orphans[node.name, trajectory] = units
                end.append(trajectory)
                continue
            if not placement.booked:
                placement.units = units
                node.take(units)
                placement.booked = True
            elif STARTS not in units:
                self.made(trajectory, node.name)
            if placement.closing:
                end.append(trajectory)
        mine = sorted(known.on.get(node.name, ()))
        lost = [name for name in mine if name not in environments and known.placements[name].serial <= asked]
        for name, trajectory in [key for key in known.orphans if key[0] == node.name and key[1] not in environments]:
            self.evicted(name, trajectory)
        return end, lost

    def node_away(self, name: str) -> None:
        """A node is away: its environments may still exist there, but their units are not taken on any node."""
        for trajectory in self.trajectories.on.get(name, ()):
            self.trajectories.placements[trajectory].booked = False
        for key in [key for key in self.trajectories.orphans if key[0] == name]:
            del self.trajectories.orphans[key]

    def node_back(self, name: str) -> None:
        """A node of this name has joined (again); its inventory will report what it still has."""
        for trajectory in self.trajectories.on.get(name, ()):
            self.trajectories.placements[trajectory].away_s = None

    def held_by_environments(self, node: str, resource: str) -> int:
        """Units of a resource that environments hold on a node."""
        known = self.trajectories
        placements = [known.placements[name] for name in known.on.get(node, ())]
        held = [placement.units for placement in placements if placement.booked]
        held += [units for (name, _), units in known.orphans.items() if name == node]
        return sum(units.get(resource, 0) for units in held)
