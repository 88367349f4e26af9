"""Reports of nodes about themselves: stream `nodes`.

A node is name + incarnation; a new incarnation ends the old one's grants.
"""

from __future__ import annotations

import msgspec

from shared.messages.base import Message, Topic


class Hello(Message, frozen=True, kw_only=True, tag="hello.v1"):
    """A manager has started. Its stream of grants is empty at this time."""

    node: str
    incarnation: str
    node_class: str
    capacity: dict[str, int]
    """Resource -> existing units, whoever owns them now."""
    kinds: list[str]
    """Action kinds it executes."""
    prefetches: list[str] = []
    """Resources of which it takes more grants than it has units. The rest wait in its queue and start in order."""
    url: str = ""
    labels: dict[str, str] = {}
    """For people: languages with versions, sandbox rung, runtime ..."""
    runtimes: list[str] = []
    """Runtimes that can create environments here: `local`, `docker`."""
    generation: int = 0
    """Number of this start of a manager, from a counter of Valkey. A later incarnation of a node has a higher one.
    0: unknown."""


class ServiceCapacity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model service of a node, for the planner."""

    resource: str
    degrees: list[int]
    """Units that one engine of it may use."""
    concurrency: int = 1
    """Actions that one engine executes at the same time."""
    restore_s: float = 0.0
    """Seconds from owning a unit until an evicted engine serves on it, as recently measured here; 0: not measured."""


class Heartbeat(Message, frozen=True, kw_only=True, tag="heartbeat.v1"):
    """The manager is alive."""

    node: str
    incarnation: str
    owned: dict[str, int]
    used: dict[str, int]
    owned_unit_s: dict[str, float] = {}
    """Integral of owned units since the start, unit-seconds."""
    used_unit_s: dict[str, float] = {}
    services: dict[str, ServiceCapacity] = {}
    """Model services of the node."""
    cold_start_s: dict[str, float] = {}
    """Resource -> seconds from owning a unit to a worker that executes on it, as recently measured here; absent if not
    measured."""


class Bye(Message, frozen=True, kw_only=True, tag="bye.v1"):
    """The manager has stopped in good order. Nothing runs there any more."""

    node: str
    incarnation: str


NODES: Topic[Hello | Heartbeat | Bye] = Topic("nodes", Hello | Heartbeat | Bye, maxlen=4_096)
