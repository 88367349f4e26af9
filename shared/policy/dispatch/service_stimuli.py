"""Stimuli about model services; see `stimuli`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.policy.model.chunks import Served


@dataclass(frozen=True, slots=True)
class ServicesReported:
    """Model services of a node, and its bad GPUs. Comes with each inventory, and when anything of it changes."""

    node: str
    incarnation: str
    resource: str
    services: Served
    device_gb: tuple[float, ...]
    """Memory of each GPU."""
    bad: tuple[int, ...] = ()
    released: tuple[int, ...] = ()
    """GPUs that are given away, or drained for that: they can be granted after they were acquired."""
    restoring: Mapping[str, float] = field(default_factory=dict)
    """Service -> seconds until an engine of it is expected to be resident, of restores under way."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Service -> reason why the node cannot use its entry."""
    quarantined: Mapping[str, str] = field(default_factory=dict)
    """Service -> reason why one of its engines serves no action, and the time of the next probe."""
