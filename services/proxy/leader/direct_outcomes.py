"""Outcomes that nodes report before they are stored, and the leader's confirmations (`shared.node.direct_report`).

Laws (tests/services/proxy/leader/test_direct_outcomes.py):
  - an outcome is confirmed only after what follows from it is stored: its action's answer, or its next stage;
  - an outcome that is not handled is not confirmed, so its node stores it, and it is handled then;
  - the stored copy of one that was handled is left out: what it reports of a provider must not count twice.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import Redis

from shared.bus import channels
from shared.bus.tail import Entry
from shared.messages.outcomes import CONFIRMATIONS, OUTCOMES, Confirmed, Finished
from shared.runtime import log
from shared.runtime.units import Seconds
from shared.runtime.validation import UNREADABLE

if TYPE_CHECKING:
    from services.proxy.leader.leader import Leader

_log = log.get(__name__)

MOST: Final = 1024
"""Outcomes that wait for a confirmation, or to be handled. Nodes store the others."""
CONFIRMED_AFTER_S: Final[Seconds] = 0.001
"""Time between a write and its confirmation, in which the action's caller gets the answer."""
REMEMBERED: Final = 16_384
"""Handled outcomes that are recognised if a copy of them is stored: by a node that got no confirmation in time."""
KEPT_S: Final[Seconds] = 1.0
"""Time after which an outcome without a write is forgotten. Its node has stored it long ago."""


@dataclass(slots=True)
class DirectOutcomes:
    """Direct outcomes of one term."""

    leader: Leader
    redis: Redis
    subscriber: Redis
    """Serves nothing else."""
    _received: list[Finished] = field(default_factory=list)
    _more: asyncio.Event = field(default_factory=asyncio.Event)
    _unconfirmed: dict[str, tuple[Seconds, Finished]] = field(default_factory=dict)
    """Action -> time and outcome of which a write may follow, by time."""
    _handled: dict[tuple[str, str, int, int, int], None] = field(default_factory=dict)
    """The newest handled outcomes (`_identity`)."""

    async def follow(self) -> None:
        """Receive outcomes until cancelled."""
        await channels.follow(self.subscriber, channels.DIRECT_OUTCOMES, self._receive)

    async def run(self) -> None:
        """Handle outcomes until cancelled."""
        while True:
            await self._more.wait()
            self._more.clear()
            received, self._received = self._received, []
            self.handle(received)

    def _receive(self, message: bytes) -> None:
        try:
            outcome = OUTCOMES.decode(message)
        except UNREADABLE as error:
            _log.error("direct_outcome_unreadable", error=str(error))
            return
        if isinstance(outcome, Finished) and len(self._received) + len(self._unconfirmed) < MOST:
            self._received.append(outcome)
            self._more.set()

    def handle(self, outcomes: list[Finished]) -> None:
        """Handle outcomes, unless entries wait that were stored before."""
        leader, now = self.leader, asyncio.get_running_loop().time()
        while self._unconfirmed and next(iter(self._unconfirmed.values()))[0] < now - KEPT_S:
            del self._unconfirmed[next(iter(self._unconfirmed))]
        if leader.behind or leader.dispatcher.unfinished:
            return
        for outcome in outcomes:
            self._unconfirmed.pop(outcome.action, None)
            self._unconfirmed[outcome.action] = now, outcome
            self._handled[_identity(outcome)] = None
            was_answered = outcome.action not in leader.unanswered
            leader.take([Entry(OUTCOMES.name, "", outcome, -1)], ticks=False)
            if was_answered:  # its units are free, and nothing is written
                self.stored(outcome.action)
        while len(self._handled) > REMEMBERED:
            del self._handled[next(iter(self._handled))]

    def repeats(self, entry: Entry[Any]) -> bool:
        """Return whether an entry is the stored copy of an outcome that was handled. One that was not is handled as the
        copy, and not once more. O(outcomes that wait to be handled).
        """
        if not isinstance(entry.message, Finished):
            return False
        identity = _identity(entry.message)
        if identity in self._handled:
            return True
        if self._received:
            self._received = [one for one in self._received if _identity(one) != identity]
        return False

    def stored(self, action: str) -> None:
        """Confirm an action's outcome, if it is one of these: what follows from it is stored."""
        if action in self._unconfirmed:
            _, outcome = self._unconfirmed.pop(action)
            confirmed = Confirmed(action=action, stage=outcome.stage, epoch=outcome.epoch, attempt=outcome.attempt)
            channel = channels.confirmations(outcome.node, outcome.incarnation)
            loop, message = asyncio.get_running_loop(), CONFIRMATIONS.encode(confirmed)
            loop.call_later(CONFIRMED_AFTER_S, channels.post, self.redis, channel, message)


def _identity(outcome: Finished) -> tuple[str, str, int, int, int]:
    """Return what names the attempt of an outcome."""
    return outcome.action, outcome.node, outcome.epoch, outcome.stage, outcome.attempt
