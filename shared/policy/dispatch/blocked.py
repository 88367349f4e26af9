"""Heads that wait for units or quotas, with their reservations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.node_choice import reserve_node
from shared.policy.dispatch.turn_reservations import overdue_until_s
from shared.policy.model.chunks import Chunk
from shared.policy.resources.chunk_choice import ChunkChoice
from shared.policy.resources.chunk_waits import fit_together, free_first
from shared.policy.resources.chunks import Chunks
from shared.policy.resources.ledger import Node
from shared.policy.resources.pools import Lane, Pool

QUOTA_PATIENCE: Final = 0.5
"""Part of its wait by which a head lets holders of its quotas be overdue. It is first in line for them, so it waits
less for others than one that waits for a chunk of GPUs (`chunk_waits.PATIENCE`).
"""


@dataclass(slots=True)
class Blocked:
    """Head that waits for units or quotas, with its reservation. Each part of it is computed on first use."""

    head: ActionState
    pool: Pool
    lane: Lane
    node: Node | None = None
    """Node where its units are predicted to be free together first; None if no ready node will ever have them."""
    units_s: float | None = None
    """Time at which they are; of chunks, the time for the action that was asked about last."""
    spares: bool = False
    """It evicts no service for which work waits (`Swaps.spared`). Then the node and the time are given."""
    until_s: float | None = None
    """Start of the reservation; infinity if it waits for what environments hold. Then no quotas are reserved: the work
    that ends these environments may need them."""

    @classmethod
    def of(cls, head: ActionState, pool: Pool, lane: Lane, spared: tuple[Node, float] | None) -> Blocked:
        """Return the reservation of a head. `spared`: what `Swaps.spared` has of it."""
        return cls(head, pool, lane) if spared is None else cls(head, pool, lane, *spared, spares=True)

    def forbids(self, cluster: ClusterState, node: Node, action: ActionState, now: float) -> bool:
        """Return whether this work, started there now, would delay the head: with the restore that it needs."""
        if self._forbids_quotas(cluster, action, now):
            return True
        if not self.needs_units(cluster, node, action, now):
            return False
        until_s = self._until(cluster, now)
        if until_s == math.inf:
            return action.begins
        return action.begins_s(node, now) + cluster.durations.expect_at_most(action) > until_s

    def needs_units(self, cluster: ClusterState, node: Node, action: ActionState, now: float) -> bool:
        """Return whether this work, started there now, would take units that the head waits for or will need."""
        if self.head.needs.keys().isdisjoint(action.needs):
            return False
        if self.units_s is None:
            self.units_s, self.node = reserve_node(cluster, self.pool, self.lane, self.head, now)
        if node is not self.node:
            return False
        chunks = node.resources.get(self.head.resource)
        if isinstance(chunks, Chunks) and self.head.needs.keys() == action.needs.keys() == {self.head.resource}:
            return self._needs_chunk(cluster, chunks, action, now)
        # else the head waits for its quotas, and its units stay free
        return not self.head.needed_quotas or not node.has_free(_both(self.head.needs, action.needs))

    def _needs_chunk(self, cluster: ClusterState, chunks: Chunks, action: ActionState, now: float) -> bool:
        """Return whether an action would get GPUs of the chunk that is free first for the head."""
        head, use, its = self.head, self.head.use(now), action.use(now)
        if not self.spares and chunks.fits(head.granted_units, use):  # it waits for quotas
            return not fit_together(chunks, action.granted_units, its, head.granted_units, use)
        others = self.pool.services.keys() - {use.service}
        times = {"now": now, "waited_s": now - head.queued_s}
        free_s, reserved = free_first(
            chunks, head.granted_units, use.service, others, cluster.swap_wait_s, **times, spares=self.spares
        )
        if reserved is None:
            return True
        choice = chunks.choose(action.granted_units, its.service, its.numbers)
        if choice is None or not (choice.chunk.overlaps(reserved) or _takes_share(chunks, choice, reserved)):
            return False
        self.units_s, self.until_s = max(now, free_s), None
        return True

    def _until(self, cluster: ClusterState, now: float) -> float:
        if self.until_s is None:
            if self.units_s is None:
                self.units_s, self.node = reserve_node(cluster, self.pool, self.lane, self.head, now)
            self.until_s = self.units_s
            if self.head.needed_quotas and self.until_s < math.inf:
                self.until_s = max(self.until_s, self._quotas_free_s(cluster, now))
        return self.until_s

    def _quotas_free_s(self, cluster: ClusterState, now: float) -> float:
        """Return when the head can take its quotas. A holder that is overdue is assumed to stay, so that other work
        starts meanwhile: for as long as it is overdue already, less a part of the head's wait, so that it gets its turn
        also if one holder after the other is overdue.
        """
        free_s = cluster.quotas.free_at(self.head.needed_quotas, now)
        if free_s == math.inf:
            return free_s
        stays_s = overdue_until_s(cluster.quotas, self.head.needed_quotas, now)
        return max(free_s, stays_s - QUOTA_PATIENCE * (now - self.head.queued_s))

    def _forbids_quotas(self, cluster: ClusterState, action: ActionState, now: float) -> bool:
        needed, amounts = self.head.needed_quotas, action.needed_quotas
        if not needed or not amounts or needed.keys().isdisjoint(amounts):
            return False
        until_s = self._until(cluster, now)
        if until_s == math.inf:
            return False
        tenants = self.head.request.tenant, action.request.tenant
        reserved = cluster.quotas.shares.reserved(needed, *tenants)
        if reserved.keys().isdisjoint(amounts):
            return False
        end_s = now + cluster.durations.expect_at_most(action)
        return cluster.quotas.delays(reserved, until_s, amounts, end_s, now)


def _takes_share(chunks: Chunks, choice: ChunkChoice, reserved: Chunk) -> bool:
    """Return whether a new chunk beside a reserved one takes so much of the node's share that the idle GPUs of the
    reserved one are beyond it.
    """
    if not choice.joins:
        return False
    busy = sum(min(reserved.size, at.size) for at in chunks.busy if at.overlaps(reserved))
    return chunks.free - choice.chunk.size < reserved.size - busy


def _both(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}
