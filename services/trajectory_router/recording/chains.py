"""Chains of the trajectories whose calls this replica records, as far as they are stored. Bounded: read at need."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from shared.store.token_calls import ChainEnds, StoredCall
from shared.tokens.calls import CallRecord
from shared.tokens.chain_heads import MOST_HEADS, ChainHeads, head_of, packed

MOST_KNOWN: Final = 16_384
"""Trajectories in memory. Each has at most 64 ends of about 150 bytes."""


@dataclass(slots=True)
class Chains:
    """Chains of one trajectory."""

    heads: ChainHeads
    next_serial: int
    ids: int
    """Ids that are stored."""

    @classmethod
    def of(cls, ends: ChainEnds) -> Chains:
        """Return what a record has."""
        heads = ChainHeads(MOST_HEADS)
        for head in ends.heads:
            heads.restore(head)
        return cls(heads, ends.next_serial, ends.ids)

    def extended(self, trajectory: str, tenant: str, record: CallRecord, serial: int) -> StoredCall:
        """Return a call as it is stored: only ids beyond the chain that it extends. O(ids).

        Args:
            record: with its whole prompt. One without ids extends nothing.
            serial: its number in the trajectory.
        """
        if record.status == "no-ids":
            return StoredCall(trajectory, tenant, replace(record, serial=serial), None)
        prompt = packed(record.prompt)
        extends, kept = self.heads.match(prompt)
        head = head_of(prompt + packed(record.output), serial)
        rest = record.prompt[kept:] if kept else record.prompt
        whole = replace(record, serial=serial, extends=extends, kept=kept, prompt=rest)
        return StoredCall(trajectory, tenant, whole, head)

    def stored(self, call: StoredCall) -> None:
        """Count a call that was stored."""
        self.next_serial = max(self.next_serial, call.record.serial + 1)
        self.ids += call.record.ids
        if call.head is not None:
            self.heads.restore(call.head)


class KnownChains:
    """Chains by trajectory. Those that were used least recently are forgotten first."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._most = most
        self._known: OrderedDict[str, Chains] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, trajectory: str) -> Chains | None:
        """Return the chains of a trajectory; None: they are to be read."""
        found = self._known.get(trajectory)
        if found is not None:
            self._known.move_to_end(trajectory)
        return found

    def put(self, trajectory: str, chains: Chains) -> None:
        """Know the chains of a trajectory."""
        self._known[trajectory] = chains
        self._known.move_to_end(trajectory)
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def forget(self, trajectory: str) -> None:
        """Read them again before the next call."""
        self._known.pop(trajectory, None)
