"""Calls of model services behind a head that have waited for long. Laws:

- a call that has waited for `LONGEST_TURN` reserves its chunk too: it keeps later calls from the one that is free
  first for it, if its service is one of the first `MOST_SERVICES` in the lane. With the reservation of the head
  alone, a backlog for one node kept a call for another node waiting for as long as the backlog lasted, because later
  calls joined the engine there;
- the first call of a tenant gets a turn, if later calls of this tenant were granted behind heads of others for
  `LONGEST_TURN`, and for `SLOWDOWN` times its expected duration. They are charged to the tenant. Otherwise it would
  have no turn while they use its share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.blocked import Blocked
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.swaps import Swaps
from shared.policy.resources.chunk_waits import LONGEST_TURN
from shared.policy.resources.pools import Lane, Pool

MOST_SERVICES: Final = 4
"""Most services of a lane whose calls reserve chunks: each is compared with each call that could start."""
SLOWDOWN: Final = 4.0
"""If calls take as long as expected, these turns use a fifth of an engine's time at most."""


@dataclass(slots=True)
class LateCalls:
    """Calls of one walk behind a head. The first one of each service reserves. Calls with quotas and elastic calls do
    not: they may wait for something else.
    """

    swaps: Swaps
    blocked: list[Blocked]
    """Reservations of the round."""
    services: set[str]
    """Services that have one from this lane; at first, that of the head."""

    def refused(self, pool: Pool, lane: Lane, action: ActionState) -> None:
        """Note a call that cannot start now."""
        service, name, swaps = action.work.service, action.request.id, self.swaps
        if not service or service in self.services or action.work.quotas or action.scales or swaps.puts_off(name):
            return
        is_late = swaps.now - action.queued_s >= LONGEST_TURN * swaps.cluster.swap_wait_s
        if not is_late or len(self.services) >= MOST_SERVICES:
            return
        self.services.add(service)
        self.blocked.append(Blocked.of(action, pool, lane, swaps.spared.get(name)))


def overtake(cluster: ClusterState, lane: Lane, action: ActionState, now: float) -> None:
    """Note that an action is granted behind a head. A call gives its tenant the next turn if that is due. O(1)."""
    if not action.work.service or lane.shared:
        return
    first = lane.queue.first_of(action.request.tenant)
    if first is None or first == action.request.id:
        return
    waits = cluster.queues.queued[first]
    waits.overtaken_s = waits.overtaken_s or now
    due_s = max(LONGEST_TURN * cluster.swap_wait_s, SLOWDOWN * cluster.durations.expect(waits))
    if now - waits.overtaken_s >= due_s:
        lane.queue.turn_next(action.request.tenant)
