"""What waits and what is stuck: told by the leader now and then, read by whoever is asked."""

from __future__ import annotations

import asyncio
import time

from redis.asyncio import Redis

from services.proxy.requests import to_stay, to_work
from services.proxy.store import Store, Stored
from shared import log
from shared.bus import functions
from shared.bus.connection import TRANSIENT, ValkeyClock
from shared.bus.functions import Deposed
from shared.messages.seen import LOOKS_EVERY_S, BatchesSeen, BatchSeen, pack
from shared.policy.backlog import Backlog, survey, why_stuck
from shared.policy.floor import Floor
from shared.policy.standing import standings
from shared.units import Epoch, Seconds

_log = log.get(__name__)

TOLD_EVERY_S: Seconds = LOOKS_EVERY_S
LEISURE = 50
"""A survey of very many stuck actions takes at most one part in so many of the leader's time."""


async def tell_backlog(redis: Redis, epoch: Epoch, floor: Floor, clock: ValkeyClock) -> None:
    """Loop: write down what waits and how batches stand, whenever it has changed, until another leader has taken over.

    With 16,000 unanswered requests of batches a turn takes the leader 2.6 ms (7 ms where the core is shared) and writes
    140 KiB. What a former leader told of batches is told anew at once, also where there are none.
    """
    told: tuple[Backlog, dict[str, BatchSeen]] | None = None
    pause_s = 0.0
    while True:
        await asyncio.sleep(pause_s)
        before = time.monotonic()
        backlog, batches = survey(floor), _seen(floor)
        changed = told is None or batches != told[1]
        pause_s = max(TOLD_EVERY_S, LEISURE * (time.monotonic() - before))
        if told == (backlog, batches):
            continue
        try:
            seen = BatchesSeen(clock.unix(), batches) if changed else None
            await functions.tell_backlog(redis, epoch, backlog, seen)
            told = backlog, batches
        except Deposed:
            return
        except TRANSIENT as error:
            _log.warning("valkey_away", what="telling what waits", error=str(error))


def _seen(floor: Floor) -> dict[str, BatchSeen]:
    return {
        name: BatchSeen([pack(times) for times in batch.queuing], [pack(times) for times in batch.running])
        for name, batch in standings(floor).items()
    }


async def reason_of(store: Store, stored: Stored) -> str:
    """Why an unanswered action is stuck; empty where it is not, or where the leader has not told so yet.

    One small read where nothing is stuck anywhere; else the action's journal entry is read as well.
    """
    pools = [pool for pool in await store.pools() if pool.lacks]
    submitted = await store.submitted(stored.entry) if pools else None
    if submitted is None:
        return ""
    return why_stuck(to_work(submitted.stages[stored.stage]), pools, to_stay(submitted))
