"""Reports of nodes about themselves: stream `nodes`.

A node is name + incarnation; a new incarnation ends the old one's grants.
"""

from __future__ import annotations

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


class Heartbeat(Message, frozen=True, kw_only=True, tag="heartbeat.v1"):
    """The manager is alive."""

    node: str
    incarnation: str
    owned: dict[str, int]
    used: dict[str, int]
    owned_unit_s: dict[str, float] = {}
    """Integral of owned units since the start, unit-seconds."""
    used_unit_s: dict[str, float] = {}
    cold_start_s: dict[str, float] = {}
    """Resource -> seconds from owning a unit to a worker that executes on it, as recently measured here; absent if not
    measured."""


class Bye(Message, frozen=True, kw_only=True, tag="bye.v1"):
    """The manager has stopped in good order. Nothing runs there any more."""

    node: str
    incarnation: str


NODES: Topic[Hello | Heartbeat | Bye] = Topic("nodes", Hello | Heartbeat | Bye, maxlen=4_096)
