"""What nodes say of themselves: stream `nodes`.

A node is name + incarnation; a new incarnation ends the old one's grants.
"""

from __future__ import annotations

from shared.messages.base import Message, Topic


class Hello(Message, frozen=True, kw_only=True, tag="hello.v1"):
    """A manager has started. Its stream `grants.<node>` is empty from here on."""

    node: str
    incarnation: str
    node_class: str
    capacity: dict[str, int]
    """Resource -> units that exist, whoever owns them now."""
    kinds: list[str]
    """Action kinds it executes."""
    lines_up: list[str] = []
    """Resources: grants that find none of their units free wait on the node and start in order; so some come ahead."""
    url: str = ""
    labels: dict[str, str] = {}
    """For people: languages with versions, sandbox rung, runtime ..."""
    runtimes: list[str] = []
    """Where environments can be made: `local`, `docker`."""


class Heartbeat(Message, frozen=True, kw_only=True, tag="heartbeat.v1"):
    """Still alive."""

    node: str
    incarnation: str
    owned: dict[str, int]
    used: dict[str, int]
    owned_unit_s: dict[str, float] = {}
    """Integral of owned units since the start, unit-seconds."""
    used_unit_s: dict[str, float] = {}
    cold_start_s: dict[str, float] = {}
    """Resource -> seconds from owning a unit to a worker that executes on it, as lately measured here; absent where
    nothing was."""


class Bye(Message, frozen=True, kw_only=True, tag="bye.v1"):
    """Stopped in good order: nothing runs there any more."""

    node: str
    incarnation: str


NODES: Topic[Hello | Heartbeat | Bye] = Topic("nodes", Hello | Heartbeat | Bye, maxlen=4_096)
