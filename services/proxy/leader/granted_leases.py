"""Leases of callers at the leader: the commands about their node, their answers, and their expiry.

The node of leases (`shared.messages.leases`) is a node of the dispatcher like any other, so that leases are granted in
the order of all work, adopted by a new leader, and answered once. It has no manager: the leader executes the commands
for it on the store.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from typing import Final

import msgspec
from redis.asyncio import Redis

from services.proxy.leader.interpreter import Interpreter
from services.proxy.leader.unanswered import HeldLease, Unanswered
from services.proxy.leader.writes import LeaseInventory
from shared.api.leases import LeaseNews
from shared.bus import held_leases
from shared.bus.connection import TRANSIENT, ValkeyClock
from shared.bus.functions import Deposed, Submission
from shared.bus.held_leases import LeaseAcquisition, LeaseGrant, LeaseRevocation
from shared.bus.holds import Taking
from shared.messages import leases
from shared.messages.actions import ActionSubmitted, CancelRequested, Request
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import NodeJoined, NodeSeen
from shared.policy.dispatch.views import LimitState
from shared.policy.model.formulation import AnswerAction, AskInventory, Command, Grant, Revoke
from shared.runtime import log
from shared.runtime.units import Epoch, Seconds

_log = log.get(__name__)
_json = msgspec.json.Encoder().encode

KEEP_S: Final = 60
"""Retention of an ended lease: a release may be repeated for so long. Answers kept for a minute are not archived."""
CHECK_S: Final[Seconds] = 0.25
"""Interval at which the leader compares the time with the next expiry. It calls the store only when one is due."""
EXPIRED_AT_ONCE: Final = 256

JOINED: Final = NodeJoined(
    leases.NODE,
    leases.INCARNATION,
    leases.NODE_CLASS,
    {leases.RESOURCE: leases.MOST_HELD},
    frozenset({leases.KIND}),
)
SEEN: Final = NodeSeen(leases.NODE, leases.INCARNATION)
"""The node is never silent: it is the store."""


class _Terms(msgspec.Struct, frozen=True):
    """The part of a lease's parameters that the leader needs."""

    ttl_s: float = 20.0


_OF_NODES: Final = (Grant, Revoke, AskInventory)
"""Commands about a node. A tuple, because `A | B` makes a new type at each call."""
RETRY_S: Final[Seconds] = 1.0
"""Pause of a caller for whom no time is known."""
_terms = msgspec.json.Decoder(_Terms).decode


class GrantedLeases:
    """Leases of one leader's term."""

    def __init__(self, epoch: Epoch, dispatcher: Dispatcher, interpreter: Interpreter, clock: ValkeyClock) -> None:
        self._epoch = epoch
        self._dispatcher = dispatcher
        self._interpreter = interpreter
        self._clock = clock
        self._due_s = 0.0
        """No lease expires before this time; at first it is not known."""

    @property
    def present(self) -> bool:
        """True after their node has joined."""
        return self._dispatcher.has_node(leases.NODE, leases.INCARNATION)

    def concerns(self, command: Command) -> bool:
        """Return whether a command is about their node."""
        return isinstance(command, _OF_NODES) and command.node == leases.NODE

    def do(
        self, command: Command, unanswered: Mapping[str, Unanswered], unjournaled: MutableMapping[str, Submission]
    ) -> None:
        """Execute a command about their node. The grant of an unjournaled lease journals it, and removes it there."""
        match command:
            case Grant():
                self._grant(command, unanswered[command.action], unjournaled.pop(command.action, None))
            case Revoke():
                names = (command.action,)
                kept = unanswered.get(command.action)
                revocation = LeaseRevocation(command.action, command.attempt, kept is None or not kept.unused)
                self._interpreter.put(revocation, names=names)
            case AskInventory():
                self._interpreter.put_after_all(LeaseInventory())

    def _grant(self, grant: Grant, kept: Unanswered, submission: Submission | None) -> None:
        submitted, now = kept.submitted, self._clock.unix()
        assert grant.hold is not None, "a lease names quotas"
        kept.leased, kept.held = True, HeldLease(grant.attempt, now)
        ttl_s = _terms(submitted.stages[0].params).ttl_s
        self._due_s = min(self._due_s, now + ttl_s)
        limits = headers_of(self._dispatcher.limit_states(grant.hold.amounts, now))
        taking = Taking(grant.hold, grant.rates)
        granting = LeaseGrant(grant.action, f"{grant.attempt}:{grant.node}", round(1000 * ttl_s), limits, taking)
        write = granting if submission is None else LeaseAcquisition(submission, granting)
        self._interpreter.put(write, submitted.tenant, (grant.action,))

    def cancelled(self, asked: Request, unanswered: Mapping[str, Unanswered]) -> None:
        """Note that a lease is cancelled because its caller has gone without it: it gives back all that it took."""
        if isinstance(asked, CancelRequested) and asked.reason == leases.GONE and asked.action in unanswered:
            unanswered[asked.action].unused = True

    def expires_at(self, at_s: Seconds) -> None:
        """Note when a lease expires that the store has granted: it may have been written late."""
        self._due_s = min(self._due_s, at_s)

    def answer(self, submitted: ActionSubmitted, answer: AnswerAction) -> bytes:
        """Return the answer of a lease: how it ended, and for one that was not granted, when it could be."""
        if answer.ended not in ("expired", "refused"):
            ended = "" if answer.ended == "ok" else answer.ended  # below 64 bytes, Valkey needs a third of the memory
            return _json(LeaseNews(id=answer.action, state="finished", ended=ended, reason=answer.reason))
        now = self._clock.unix()
        amounts = self._dispatcher.expected_amounts(submitted.tenant, leases.KIND, submitted.stages[0].quotas)
        outlook = self._dispatcher.quota_outlook(amounts, now)
        late = answer.ended == "expired" and not outlook.never
        return _json(
            LeaseNews(
                id=answer.action,
                state="finished",
                ended="expired" if late else "refused",
                reason=outlook.never or answer.reason,
                retry_after_s=None if outlook.never else _retry_after_s(outlook.free_at_s - now),
                limits=headers_of(self._dispatcher.limit_states(amounts, now)),
            )
        )

    async def expire(self, redis: Redis) -> None:
        """Loop: end the leases that have expired, until another leader has taken over."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                while self._clock.unix() >= self._due_s:
                    await self._expire(redis)
            except Deposed:
                return
            except TRANSIENT as error:
                _log.warning("valkey_unavailable", what="expiring leases", error=str(error))

    async def _expire(self, redis: Redis) -> None:
        before, self._due_s = self._due_s, math.inf  # grants meanwhile lower it
        try:
            ended, next_s = await held_leases.expire_leases(redis, self._epoch, EXPIRED_AT_ONCE)
        except BaseException:
            self._due_s = before
            raise
        self._due_s = min(self._due_s, math.inf if next_s is None else next_s)
        if ended:
            _log.info("leases_expired", leases=ended)


def _retry_after_s(free_in_s: Seconds) -> Seconds:
    """Return when to ask again. While others hold or wait for the amounts, the ledger may know no time."""
    return free_in_s if 0 < free_in_s < math.inf else RETRY_S


def headers_of(states: list[LimitState]) -> str:
    """Return the values of the headers `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers), with
    a line feed between them. Amounts are rounded down, times up.
    """
    policies, levels = [], []
    for state in states:
        name, policy = _policy(state.quota, state.held, state.window_s, state.most)
        policies.append(policy)
        known = state.full_in_s is not None and math.isfinite(state.full_in_s)
        reset = f";t={math.ceil(state.full_in_s or 0.0)}" if known else ""
        levels.append(f"{name};r={math.floor(state.free)}{reset}")
    return f"{', '.join(policies)}\n{', '.join(levels)}"


@lru_cache(1024)
def _policy(quota: str, held: bool, window_s: float | None, most: float) -> tuple[str, str]:
    """Return the name of a limit, and its part of `RateLimit-Policy`."""
    name = f'"{quota}"' if held else f'"{quota}/{_window(window_s)}"'
    unit = ';qu="concurrent-requests"' if held else ""
    window = "" if window_s is None else f";w={math.ceil(window_s)}"
    return name, f"{name};q={math.floor(most)}{unit}{window}"


def _window(window_s: float | None) -> str:
    return "total" if window_s is None else f"{window_s:.12g}s"  # no exponent
