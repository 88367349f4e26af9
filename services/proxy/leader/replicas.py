"""Replicas that hold callers, and cancellation of their actions when a replica is killed.

The connection of a held caller ends with its proxy, so no caller waits for the answer. Each replica renews its
presence.
The journal names the replica with each action that it holds (`ActionSubmitted.held_by`). The leader cancels the actions
of a replica that is absent in all checks for `CHECK_S`. One check is not enough, because Valkey itself may have been
away. A replica that has ended on the leader's own machine is absent when it has missed a renewal. A replica that was
only suspended submits its cancelled actions again (`held`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from services.proxy.leader.leader import Leader
from shared.bus import replicas
from shared.bus.connection import TRANSIENT
from shared.messages.actions import ActionSubmitted
from shared.policy.dispatch.stimuli import ActionCancelled
from shared.runtime import log
from shared.runtime.process_names import has_ended
from shared.runtime.units import Seconds

_log = log.get(__name__)

PRESENCE_S: Final[Seconds] = 15.0
RENEW_S: Final[Seconds] = 1.0
MISSED_S: Final[Seconds] = 1.6 * RENEW_S
"""Time without a renewal after which a replica has missed one."""
CHECK_S: Final[Seconds] = 5.0
"""Longer than a renewal takes after Valkey has come back."""
LOOK_S: Final[Seconds] = 1.0
"""Interval at which the leader looks whether a process has ended on its machine."""
AGAIN_S: Final[Seconds] = 0.2
"""Pause between checks before leases are granted."""
CANCELLED_AT_ONCE: Final = 64
PROXY_GONE: Final = "the proxy that held its caller is gone"


async def renew(redis: Redis, replica: str) -> None:
    """Renew the presence of this replica, forever."""
    while True:
        try:
            await replicas.renew(redis, replica, PRESENCE_S)
        except (*TRANSIENT, ResponseError) as error:
            _log.debug("replica_presence_renewal_failed", error=str(error))
        await asyncio.sleep(RENEW_S)


class AbsentReplicas:
    """Finds replicas that hold unanswered actions and are absent."""

    def __init__(self, redis: Redis, has_ended: Callable[[str], bool] = has_ended) -> None:
        self._redis = redis
        self._has_ended = has_ended
        self._holders: frozenset[str] = frozenset()
        """Replicas that held actions at the last check."""
        self._missed_s: dict[str, Seconds] = {}
        """Those that were absent then -> time of the first check in a row that found them absent."""
        self._found: set[str] = set()
        """Actions that were found then or before, and are not answered."""
        self.undecided = False
        """A replica seemed to have ended at the last check, and has not missed a renewal."""

    def seem_ended(self) -> bool:
        """Return whether a replica that held actions seems to have ended. It costs 20 us for each."""
        return any(map(self._has_ended, self._holders))

    async def check(self, now: Seconds, unanswered: Iterable[ActionSubmitted]) -> list[str]:
        """Return the actions that absent replicas held, each once. O(unanswered): 10 ms for 100,000.

        `now`: time of any clock. A replica is absent if it was at all checks of the last `CHECK_S`.
        """
        held: dict[str, list[str]] = defaultdict(list)
        for submitted in unanswered:
            if submitted.held_by:
                held[submitted.held_by].append(submitted.action)
        self._holders = frozenset(held)
        missed_s, self._missed_s = self._missed_s, {}  # stays empty if Valkey does not answer now
        left_s = await replicas.left_s(self._redis, held)
        ended = set(filter(self._has_ended, held))
        silent = {replica for replica in ended if left_s[replica] <= PRESENCE_S - MISSED_S}
        self.undecided = ended > silent
        self._missed_s = {replica: missed_s.get(replica, now) for replica in held if not left_s[replica]}
        absent = silent | {replica for replica, since_s in self._missed_s.items() if now - since_s >= CHECK_S}
        found = {action for replica in absent for action in held[replica]}
        new = [action for replica in sorted(absent) for action in held[replica] if action not in self._found]
        self._found = found
        if new:
            _log.warning("held_calls_cancelled", actions=len(new), replicas=sorted(absent))
        return new


async def cancel_held(redis: Redis, leader: Leader, deposed: Callable[[], bool]) -> None:
    """Loop until another leader has taken over: cancel the actions that dead replicas held for their callers.

    Leases are granted after the first check, so that none is granted to a caller that ended with a former leader of
    this machine.
    """
    absent, checks = AbsentReplicas(redis), 0
    while checks == 0 or (absent.undecided and checks <= MISSED_S / AGAIN_S):
        if deposed():
            return
        if checks:
            await asyncio.sleep(AGAIN_S)
        checks += await _cancel(absent, leader)
    leader.serve_leases()
    loop = asyncio.get_running_loop()
    checked_s = loop.time()
    while not deposed():
        await asyncio.sleep(LOOK_S)
        if loop.time() - checked_s >= CHECK_S or absent.seem_ended():
            checked_s = loop.time()
            await _cancel(absent, leader)


async def _cancel(absent: AbsentReplicas, leader: Leader) -> bool:
    """Check once. False: Valkey does not answer."""
    try:
        now = asyncio.get_running_loop().time()
        gone = await absent.check(now, [kept.submitted for kept in leader.unanswered.values() if not kept.leased])
    except TRANSIENT as error:
        _log.warning("valkey_unavailable", what="checking replicas", error=str(error))
        await asyncio.sleep(AGAIN_S)
        return False
    for count, action in enumerate(gone, 1):
        if action in leader.unanswered:
            leader.handle(ActionCancelled(action, PROXY_GONE))  # alone, so that a failure names no other action
        if count % CANCELLED_AT_ONCE == 0:
            await asyncio.sleep(0)
    return True
