"""What each pool could hold: the capacities of the nodes that live, by what they say on `nodes`."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.messages.nodes import Bye, Heartbeat, Hello
from shared.units import Seconds

MOST_NODES = 4096


@dataclass(slots=True)
class Capacity:
    """Nodes by name, the newest incarnation of each. Time is Valkey's, from the entries' ids."""

    lost_s: Seconds
    _hellos: dict[str, Hello] = field(default_factory=dict)
    _seen: dict[str, Seconds] = field(default_factory=dict)

    def heard(self, at: Seconds, message: Hello | Heartbeat | Bye) -> None:
        """Take one message, in the order of the stream."""
        if isinstance(message, Hello):
            self._hellos[message.node] = message
            while len(self._hellos) > MOST_NODES:
                del self._hellos[next(iter(self._hellos))]
        known = self._hellos.get(message.node)
        if known is None or known.incarnation != message.incarnation:
            return
        if isinstance(message, Bye):
            del self._hellos[message.node]
            self._seen.pop(message.node, None)
        else:
            self._seen[message.node] = at

    def by_pool(self, now: Seconds) -> dict[str, int]:
        """Units by pool of the nodes heard of within `lost_s`."""
        pools: dict[str, int] = {}
        for hello in self._hellos.values():
            alive = now - self._seen.get(hello.node, 0.0) <= self.lost_s
            for resource, units in hello.capacity.items():
                pool = f"{resource}@{hello.node_class}"
                pools[pool] = pools.get(pool, 0) + (units if alive else 0)
        return pools
