"""Direct reports: the outcome of an idle node reaches the leader before it is stored, and need not be stored at all.

A stored outcome costs its action a write with an fsync of the store, between the end of its execution and the leader's
decision. A direct report has none: the node publishes the outcome on a channel, the leader decides, stores the answer,
and confirms it. The node keeps the outcome until then, and stores it if no confirmation comes.

Laws (tests/shared/node/test_direct_report.py, tests/e2e/test_direct_reports.py):
  - an outcome is either confirmed, which is to say that its effects are stored, or stored itself;
  - what is put behind it is stored after it, and waits for the reply to the report: `CONFIRMED_WITHIN_S` at most.
"""

from __future__ import annotations

import asyncio
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from shared.bus import channels
from shared.bus.connection import TRANSIENT
from shared.messages.outcomes import CONFIRMATIONS, OUTCOMES, Confirmed, Finished
from shared.node.identity import NodeIdentity
from shared.runtime import log
from shared.runtime.units import Seconds
from shared.runtime.validation import UNREADABLE

_log = log.get(__name__)

CONFIRMED_WITHIN_S: Final[Seconds] = 0.02
"""Time after which an outcome is stored. The leader needs some 2 ms."""
PAUSE_S: Final[Seconds] = 1.0
"""Time without direct reports after one that was not confirmed: a slow store would get both."""
MOST_BYTES: Final = 16 << 10
"""Bytes of an outcome that is reported directly. Valkey closes the connection of a subscriber that is far behind."""


class DirectReport:
    """Direct reports of one node, one at a time."""

    def __init__(self, redis: Redis, subscriber: Redis, identity: NodeIdentity) -> None:
        """`subscriber`: a client that serves nothing else."""
        self._redis = redis
        self._subscriber = subscriber
        self._channel = channels.confirmations(identity.node, identity.incarnation)
        self._under_way: tuple[Finished, asyncio.Future[bool]] | None = None
        self._not_before: Seconds = 0.0

    async def run(self) -> None:
        """Receive confirmations forever."""
        await channels.follow(self._subscriber, self._channel, self._receive)

    async def confirmed(self, outcome: Finished) -> bool:
        """Report an outcome. Return whether its effects are stored; if not, the outcome must be stored."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before:
            return False
        message = OUTCOMES.encode(outcome)
        if len(message) > MOST_BYTES:
            return False
        confirmation: asyncio.Future[bool] = loop.create_future()
        pause_s = PAUSE_S
        self._under_way = outcome, confirmation
        try:
            async with asyncio.timeout(CONFIRMED_WITHIN_S):
                if await channels.publish(self._redis, channels.DIRECT_OUTCOMES, message):
                    return await confirmation
        except TRANSIENT:  # TimeoutError is one of them
            pass
        except ResponseError as error:
            _log.warning("channel_refused", channel=channels.DIRECT_OUTCOMES, error=str(error))
            pause_s = channels.REFUSED_S
        finally:
            self._under_way = None
        self._not_before = loop.time() + pause_s
        return False

    def interrupt(self) -> None:
        """End the wait for a confirmation: other messages shall be stored, and in order."""
        if self._under_way is not None and not self._under_way[1].done():
            self._under_way[1].set_result(False)

    def _receive(self, message: bytes) -> None:
        try:
            confirmed = CONFIRMATIONS.decode(message)
        except UNREADABLE as error:
            _log.error("confirmation_unreadable", error=str(error))
            return
        if self._under_way is not None:
            outcome, confirmation = self._under_way
            if confirmed == confirmation_of(outcome) and not confirmation.done():
                confirmation.set_result(True)


def confirmation_of(outcome: Finished) -> Confirmed:
    """Return the message that confirms an outcome."""
    return Confirmed(action=outcome.action, stage=outcome.stage, epoch=outcome.epoch, attempt=outcome.attempt)
