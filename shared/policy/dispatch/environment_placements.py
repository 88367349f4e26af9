"""Placements of trajectories' environments: one each, on one node, from first action to end (ARL-Tangram §5.2).

Law: the units of an environment stay taken on its node until the node reports its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shared.policy.dispatch.nodes import Nodes
from shared.policy.model.formulation import EnvironmentNeed
from shared.policy.resources.ledger import Node, environment
from shared.policy.resources.resource import lasting


@dataclass(slots=True)
class Placement:
    """Placement of one trajectory's environment, in the leader's view."""

    node: str
    units: Mapping[str, int]
    """Units it holds of its node."""
    serial: int = 0
    """Serial of the grant that begins it; orders it against inventories. 0: granted by a former leader."""
    allocated: bool = False
    """Its units are taken on that node. False while a node that came back has not reported what it still has."""
    closing: bool = False
    """Its trainer has closed it, or it is unknown: the node is asked to end it."""
    away_s: float | None = None
    """Time since which its node has been silent."""


@dataclass(slots=True)
class EnvironmentPlacements:
    """Environments on nodes: their units there, and reconciliation with each node's inventory."""

    nodes: Nodes
    placements: dict[str, Placement] = field(default_factory=dict)
    """Trajectory -> placement of its environment."""
    on_node: dict[str, set[str]] = field(default_factory=dict)
    """Node -> trajectories placed there."""
    orphans: dict[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    """(Node, trajectory) -> units of an environment on a node where its trajectory is not placed; the node is asked to
    end it."""

    def begins(self, need: EnvironmentNeed | None) -> bool:
        """Return whether an action that needs it, granted now, would begin an environment."""
        return need is not None and need.trajectory not in self.placements

    def place(self, need: EnvironmentNeed, node: Node, serial: int, now: float) -> None:
        """Place the environment of an action that begins it: take its units on the node."""
        node.take(need.units, environment(need.trajectory))
        node.images.environment_begun(need.image, lasting(node.specs, need.units), now)
        self.add(need.trajectory, Placement(node.name, need.units, serial, allocated=True))

    def add(self, trajectory: str, placement: Placement) -> None:
        """Record where a trajectory is placed."""
        self.placements[trajectory] = placement
        self.on_node.setdefault(placement.node, set()).add(trajectory)

    def created(self, trajectory: str, node: str) -> bool:
        """Release the units held only while the environment was being created. False: it was known to exist already."""
        placement, here = self.placements.get(trajectory), self.nodes.present.get(node)
        if placement is None or placement.node != node or here is None or not placement.allocated:
            return False  # if it is not allocated, the node's inventory will report what it holds
        kept = lasting(here.specs, placement.units)
        released = {name: count for name, count in placement.units.items() if name not in kept}
        if not released:
            return False
        here.give_back(released, environment(trajectory))
        placement.units = kept
        return True

    def remove(self, trajectory: str) -> Placement | None:
        """Remove the placement of an ended environment and free its units. Returns the placement."""
        placement = self.placements.pop(trajectory, None)
        if placement is None:
            return None
        here = self.on_node[placement.node]
        here.discard(trajectory)
        if not here:
            del self.on_node[placement.node]
        if placement.allocated:
            self.nodes.present[placement.node].give_back(placement.units, environment(trajectory))
        return placement

    def remove_orphan(self, node: str, trajectory: str) -> bool:
        """Remove an orphaned environment that has ended and free its units. False: no such orphan is known."""
        units = self.orphans.pop((node, trajectory), None)
        if units is not None and node in self.nodes.present:
            self.nodes.present[node].give_back(units, environment(trajectory))
        return units is not None

    def reconcile(
        self, node: Node, environments: Mapping[str, Mapping[str, int]], asked: int
    ) -> tuple[list[str], list[str]]:
        """Reconcile with a node's inventory of environments, complete up to the grant of serial `asked`.

        Returns two lists: environments it must end (unknown, closed, or of trajectories placed elsewhere), and those it
        has lost.
        """
        end = [name for name, units in sorted(environments.items()) if self._must_end(node, name, units)]
        placed = sorted(self.on_node.get(node.name, ()))
        lost = [name for name in placed if name not in environments and self.placements[name].serial <= asked]
        for name, trajectory in [key for key in self.orphans if key[0] == node.name and key[1] not in environments]:
            self.remove_orphan(name, trajectory)
        return end, lost

    def _must_end(self, node: Node, trajectory: str, units: Mapping[str, int]) -> bool:
        """Take the units of an environment that a node reports, and return whether the node must end it."""
        placement = self.placements.get(trajectory)
        if placement is None or placement.node != node.name:
            if (node.name, trajectory) not in self.orphans:
                node.take(units, environment(trajectory))
                self.orphans[node.name, trajectory] = units
            return True
        if not placement.allocated:
            placement.units = units
            node.take(units, environment(trajectory))
            placement.allocated = True
        elif len(lasting(node.specs, units)) == len(units):
            self.created(trajectory, node.name)
        return placement.closing

    def node_away(self, name: str) -> None:
        """A node is away: its environments may still exist there, but their units are not taken on any node."""
        for trajectory in self.on_node.get(name, ()):
            self.placements[trajectory].allocated = False
        for key in [key for key in self.orphans if key[0] == name]:
            del self.orphans[key]

    def node_back(self, name: str) -> None:
        """A node of this name has joined (again); its inventory will report what it still has."""
        for trajectory in self.on_node.get(name, ()):
            self.placements[trajectory].away_s = None

    def away(self, now: float, grace_s: float) -> Iterator[tuple[str, Placement]]:
        """Yield placements whose node has been away for longer than `grace_s`."""
        for node in [node for node in self.on_node if node not in self.nodes.present]:
            for trajectory in sorted(self.on_node[node]):
                placement = self.placements[trajectory]
                if placement.away_s is None:
                    placement.away_s = now
                elif now - placement.away_s > grace_s:
                    yield trajectory, placement

    def held(self, node: str, resource: str) -> int:
        """Units of a resource that environments hold on a node."""
        placements = [self.placements[name] for name in self.on_node.get(node, ())]
        held = [placement.units for placement in placements if placement.allocated]
        held += [units for (name, _), units in self.orphans.items() if name == node]
        return sum(units.get(resource, 0) for units in held)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        assert {(placement.node, name) for name, placement in self.placements.items()} == {
            (node, name) for node, here in self.on_node.items() for name in here
        }, "placements by node"
