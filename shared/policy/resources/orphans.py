"""Orphans: attempts on a node for which no request waits any more.

Law: an orphan in a node's queue takes its units as soon as they are free. Its node may have started it before it reads
that the attempt is not needed, so nothing else is granted these units until the node reports the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Orphan:
    """An attempt that a node was asked to stop and has not yet confirmed. No request waits for it; its units are
    taken.
    """

    stage: int
    attempt: int
    units: Mapping[str, int]
    serial: int
    """Serial of its grant; orders it against inventories."""
    since_s: float
    awaits: Mapping[str, int] = field(default_factory=dict)
    """Units for which it waits in the node's queue."""

    def started(self) -> Orphan:
        """Return it with the units that it has awaited."""
        return replace(self, units=self.awaits, awaits={})
