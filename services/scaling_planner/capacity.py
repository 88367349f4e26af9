"""Capacity of each pool: the sum over live nodes, from the messages of the stream `nodes`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from shared.kinds.registry import all_kinds
from shared.messages.nodes import Bye, Heartbeat, Hello, ServiceCapacity
from shared.policy.scaling.chunked_pools import PlannedService
from shared.policy.scaling.stimuli import NodesChanged
from shared.runtime.units import Seconds

MAX_NODES = 4096


@dataclass(slots=True)
class Capacity:
    """Nodes by name, the newest incarnation of each. Time is Valkey's, from the entries' ids."""

    lost_s: Seconds
    _hellos: dict[str, Hello] = field(default_factory=dict)
    _last_message_s: dict[str, Seconds] = field(default_factory=dict)
    _cold_start_s: dict[str, dict[str, Seconds]] = field(default_factory=dict)
    """By node and resource, as last measured."""
    _services: dict[str, dict[str, ServiceCapacity]] = field(default_factory=dict)
    """By node: its model services."""

    def receive(self, at: Seconds, message: Hello | Heartbeat | Bye) -> None:
        """Handle one message, in the order of the stream."""
        if isinstance(message, Hello):
            if (newer := self._hellos.get(message.node)) is not None and newer.generation > message.generation:
                return
            self._hellos[message.node] = message
            while len(self._hellos) > MAX_NODES:
                oldest = next(iter(self._hellos))
                del self._hellos[oldest]
                self._last_message_s.pop(oldest, None)
                self._cold_start_s.pop(oldest, None)
                self._services.pop(oldest, None)
        known = self._hellos.get(message.node)
        if known is None or known.incarnation != message.incarnation:
            return
        if isinstance(message, Bye):
            del self._hellos[message.node]
            self._last_message_s.pop(message.node, None)
            self._cold_start_s.pop(message.node, None)
            self._services.pop(message.node, None)
        else:
            self._last_message_s[message.node] = at
        if isinstance(message, Heartbeat):
            self._cold_start_s[message.node] = message.cold_start_s
            self._services[message.node] = message.services

    def stimulus(self, now: Seconds) -> NodesChanged:
        """Stimulus for the planner: capacities, cold starts and model services."""
        return NodesChanged(self.by_pool(now), self.cold_start_s(now), self.services(now))

    def by_pool(self, now: Seconds) -> dict[str, int]:
        """Units by pool of the nodes with a message within `lost_s`.

        Resources that environments hold are no pools: no work queues for them, and they are not scaled.
        """
        pools: dict[str, int] = {}
        held = all_kinds().held
        for hello in self._hellos.values():
            alive = self._is_alive(hello.node, now)
            for resource, units in hello.capacity.items():
                if resource in held:
                    continue
                pool = f"{resource}@{hello.node_class}"
                pools[pool] = pools.get(pool, 0) + (units if alive else 0)
        return pools

    def cold_start_s(self, now: Seconds) -> dict[str, Seconds]:
        """By pool, the longest cold start of a worker on a live node, rounded up to a tenth of a second."""
        longest: dict[str, Seconds] = {}
        for node, measured in self._cold_start_s.items():
            for resource, seconds in measured.items() if self._is_alive(node, now) else ():
                pool = f"{resource}@{self._hellos[node].node_class}"
                longest[pool] = max(longest.get(pool, 0.0), math.ceil(seconds * 10) / 10)
        return longest

    def services(self, now: Seconds) -> dict[str, dict[str, PlannedService]]:
        """By pool, the model services of live nodes. Of different reports, the fewest requests of an engine and the
        longest restore count.
        """
        pools: dict[str, dict[str, PlannedService]] = {}
        for node, reported in self._services.items():
            for name, one in reported.items() if self._is_alive(node, now) else ():
                pool = pools.setdefault(f"{one.resource}@{self._hellos[node].node_class}", {})
                restore_s = math.ceil(one.restore_s * 10) / 10
                here = PlannedService(tuple(one.degrees), one.concurrency, restore_s)
                pool[name] = here if name not in pool else _combined(pool[name], here)
        return pools

    def _is_alive(self, node: str, now: Seconds) -> bool:
        return now - self._last_message_s.get(node, 0.0) <= self.lost_s


def _combined(one: PlannedService, other: PlannedService) -> PlannedService:
    return PlannedService(
        tuple(sorted({*one.degrees, *other.degrees})),
        min(one.concurrency, other.concurrency),
        max(one.restore_s, other.restore_s),
    )
