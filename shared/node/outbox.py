"""Outcomes to be published: in order, in batches, with retries until Valkey accepts them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from redis.asyncio import Redis

from shared.bus import functions
from shared.bus.connection import with_retries
from shared.messages.outcomes import OUTCOMES, Finished, Outcome
from shared.node.direct_report import DirectReport

MOST_AT_ONCE = 256
GATHER_MOST = 16
"""Most outcomes that gather while no core waits for new grants."""
GATHER_S = 0.01
"""Longest time that they gather, in seconds."""


class Outbox:
    """Outcomes not yet published. Bounded by the grants of the node, because each attempt has one outcome.

    Outcomes that come during a flush leave together with the next flush. Nothing is dropped while Valkey is away:
    outcomes are retried, and an inventory leaves after the outcomes that came before it.
    """

    def __init__(self, redis: Redis, direct: DirectReport | None = None) -> None:
        """`direct`: reports outcomes of an idle node; None: all are stored."""
        self._redis = redis
        self._direct = direct
        self.is_idle: Callable[[], bool] = lambda: False
        """True while the node executes nothing."""
        self.may_gather: Callable[[], bool] = lambda: False
        """True while the node has enough work. Outcomes then wait for others up to `GATHER_S`: each costs less."""
        self._waiting: list[Outcome] = []
        self._timer: asyncio.TimerHandle | None = None
        self._more = asyncio.Event()
        self._flushing = asyncio.Lock()

    def put(self, outcome: Outcome) -> None:
        """Publish this outcome, after all outcomes put before."""
        self._waiting.append(outcome)
        if self._direct is not None:
            self._direct.interrupt()
        if not isinstance(outcome, Finished) or len(self._waiting) >= GATHER_MOST or not self.may_gather():
            self._more.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._more.set)

    def due(self) -> bool:
        """True if outcomes wait and their gathering is over."""
        return self._more.is_set()

    def ready(self) -> bool:
        """False if outcomes pile up."""
        return len(self._waiting) < 16 * MOST_AT_ONCE

    async def run(self) -> None:
        """Flush forever."""
        while True:
            await self._more.wait()
            self._more.clear()
            await self.flush()

    async def flush(self) -> None:
        """Publish all outcomes, `MOST_AT_ONCE` a round trip. They stay in the outbox until Valkey has stored them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._flushing:  # the last flush of a stopping node may run beside the loop's own
            while self._waiting:
                alone = self._alone()
                if self._direct is not None and alone is not None and await self._direct.confirmed(alone):
                    del self._waiting[0]
                    continue
                batch = self._waiting[:MOST_AT_ONCE]
                await self._send([OUTCOMES.encode(outcome) for outcome in batch])
                del self._waiting[: len(batch)]

    def _alone(self) -> Finished | None:
        """Return the only outcome that waits, if it may be reported directly; else None.

        Its node executes nothing else, so one message more does not reduce the throughput. It is the result of an
        execution. After another one the leader may grant the action again, and must have read before
        what the node has stored about its engines.
        """
        first = self._waiting[0]
        if len(self._waiting) > 1 or not isinstance(first, Finished) or first.result.status != "ok":
            return None
        return first if self.is_idle() else None

    async def _send(self, payloads: list[bytes]) -> None:
        async def attempt() -> None:
            await functions.publish(self._redis, OUTCOMES.name, OUTCOMES.maxlen or 0, payloads)

        await with_retries(attempt, what="reporting outcomes", limit_s=None)
