"""Leases of callers in Valkey (`shared.messages.leases`): granted by the leader, renewed and ended by their callers.

All functions are atomic and safe to repeat. A lease that has ended stays known with its action, for a minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import Answering, Submission, call
from shared.bus.holds import Taking, pack
from shared.bus.keys import Role
from shared.messages.leases import GrantedLease
from shared.messages.outcomes import OUTCOMES
from shared.runtime.units import Epoch, Seconds

_EPOCH: Final = keys.epoch(Role.DISPATCHER)
_json = msgspec.json.Encoder().encode

LeaseEnding = Literal["", "released", "expired", "revoked"]
"""How a lease has ended; empty: it has not."""
_ENDINGS: Final[dict[bytes, LeaseEnding]] = {b"released": "released", b"expired": "expired", b"revoked": "revoked"}
LeaseCode = Literal["held", "released", "unknown", "waits", "fenced", "over", "other-amounts"]
"""A caller's relation to a lease. `held`: it holds it. `released`: it has released it. `waits`: the lease is not
granted. `fenced`: another fence was given for it. `over`: it has expired, or was revoked. `other-amounts`: it has
released it, and not with the amounts of this call."""
_CODES: Final[dict[int, LeaseCode]] = {
    1: "held",
    0: "released",
    -1: "unknown",
    -2: "waits",
    -3: "fenced",
    -4: "over",
    -5: "other-amounts",
}


class LeaseGrant(NamedTuple):
    """One item of `grant_leases`."""

    action: str
    mark: str
    """`attempt:node`, as of every grant."""
    ttl_ms: int
    limits: str
    """`GrantedLease.limits`."""
    taking: Taking


class LeaseAcquisition(NamedTuple):
    """One item of `acquire_leases`: a lease that the leader has decided about before it is journaled."""

    submission: Submission
    grant: LeaseGrant | None
    """None: it waits."""


class Acquired(NamedTuple):
    """Result of `acquire_leases` for one item."""

    entry: str
    """Its journal entry."""
    granted: GrantedLease | None


class LeaseRelease(NamedTuple):
    """One item of `release_leases`: the answer of a lease that its caller releases."""

    answering: Answering
    fence: int
    used: bytes = b""
    """See `encoded_amounts`."""


class LeaseRevocation(NamedTuple):
    """One item of `revoke_leases`."""

    action: str
    attempt: int
    begun: bool = True
    """False: its caller never learned that it had the lease, so it has used nothing."""


class LeaseEnd(NamedTuple):
    """One item of `end_leases`."""

    action: str
    fence: int
    used: bytes = b""
    """Quota -> amount that was really used; empty: not known. See `encoded_amounts`."""


class LeaseRecord(NamedTuple):
    """One action that was submitted as a lease."""

    fence: int
    """0: it is not granted."""
    expires_s: Seconds
    ttl_s: Seconds
    ended: LeaseEnding
    answer: bytes | None

    @property
    def is_held(self) -> bool:
        """Return whether it was granted and has not ended. It may have expired a moment ago."""
        return bool(self.fence) and not self.ended and self.answer is None


def encoded_amounts(used: Mapping[str, float]) -> bytes:
    """Return used amounts as JSON, the same text for equal amounts (1 is 1.0, and -0.0 is 0.0); empty for none."""
    return _json({quota: used[quota] + 0.0 for quota in sorted(used)}) if used else b""


async def grant_leases(redis: Redis, epoch: Epoch, grants: Sequence[LeaseGrant]) -> list[GrantedLease]:
    """Grant leases with their holds of quotas, and wake the replicas. Returns those whose action exists.

    Raises:
        Deposed: this leader's epoch is over; nothing was granted.
    """
    args: list[Any] = [epoch]
    for grant in grants:
        args += (grant.mark, grant.ttl_ms, grant.limits)
    touched = (_EPOCH, keys.ANSWERED, keys.LEASE_FENCES, keys.LEASES_DUE, *(keys.action(one.action) for one in grants))
    touched = (*touched, keys.QUOTA_HOLDS, keys.QUOTA_LEVELS)
    packed = pack(one.taking for one in grants)
    replies = await call(redis, "grant_leases_with_quotas_v1", touched, *args, packed)
    return [
        GrantedLease(grant.action, fence, expires_ms, grant.ttl_ms, grant.limits)
        for grant, (fence, expires_ms) in zip(grants, replies, strict=True)
        if fence
    ]


async def acquire_leases(
    redis: Redis, epoch: Epoch, acquisitions: Sequence[LeaseAcquisition], *, max_journal: int, again: bool = False
) -> list[Acquired] | None:
    """Journal leases and grant those that have a grant, in one write. Wakes no other replica. None: the journal has no
    room, and nothing was written.

    `again`: an earlier call with these leases may have been executed. This one then succeeds, also if memory is full.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
        Overloaded: Valkey's memory bound is reached; nothing was written.
    """
    args: list[Any] = [epoch, max_journal]
    for submission, grant in acquisitions:
        mark, ttl_ms = ("", 0) if grant is None else (grant.mark, grant.ttl_ms)
        args += (submission.digest, submission.payload, mark, ttl_ms)
    args.append(pack(one.grant.taking for one in acquisitions if one.grant is not None))
    actions = (keys.action(one.submission.action) for one in acquisitions)
    touched = (_EPOCH, keys.ACTIONS, keys.LEASE_FENCES, keys.LEASES_DUE, *actions)
    touched = (*touched, keys.QUOTA_HOLDS, keys.QUOTA_LEVELS)
    name = "acquire_leases_again_v1" if again else "acquire_leases_v1"
    replies = await call(redis, name, touched, *args)
    if replies == 0:
        return None
    return [_acquired(one, *reply) for one, reply in zip(acquisitions, replies, strict=True)]


def _acquired(acquisition: LeaseAcquisition, entry: bytes, fence: int, expires_ms: int) -> Acquired:
    grant = acquisition.grant
    if grant is None:
        return Acquired(entry.decode(), None)
    return Acquired(entry.decode(), GrantedLease(grant.action, fence, expires_ms, grant.ttl_ms, grant.limits))


async def release_leases(redis: Redis, epoch: Epoch, releases: Sequence[LeaseRelease]) -> list[LeaseCode]:
    """Release leases and answer their actions, in one write. `held`: this call has released it. With any other code it
    had ended; its action is answered too. A repeat with the same amounts is `released`.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    actions = (keys.action(one.answering.action) for one in releases)
    touched = (_EPOCH, keys.ACTIONS, keys.LEASES_DUE, *actions, keys.QUOTA_HOLDS, keys.QUOTA_LEVELS)
    args: list[Any] = [epoch]
    for answering, fence, used in releases:
        args += (fence, used, answering.entry, answering.answer, answering.keep_s)
    args.append(pack(change for one in releases for change in one.answering.settled))
    return [_CODES[code] for code in await call(redis, "release_leases_with_quotas_v2", touched, *args)]


async def end_leases(redis: Redis, ends: Sequence[LeaseEnd]) -> list[LeaseCode]:
    """Release leases. `held`: this call has released it. A repeat with the same amounts or with none is `released`."""
    touched = (keys.OUTCOMES, keys.LEASES_DUE, *(keys.action(one.action) for one in ends))
    args: list[Any] = [OUTCOMES.maxlen]
    for one in ends:
        args += (one.fence, one.used)
    return [_CODES[code] for code in await call(redis, "end_leases_v1", touched, *args)]


async def renew_leases(redis: Redis, renewals: Sequence[tuple[str, int]]) -> list[tuple[LeaseCode, Seconds]]:
    """Renew leases by (action, fence) for their whole time. Returns the time at which each expires then, Unix
    seconds.
    """
    touched = (keys.LEASES_DUE, *(keys.action(action) for action, _ in renewals))
    replies = await call(redis, "renew_leases_v1", touched, *(fence for _, fence in renewals))
    return [(_CODES[code], expires_ms / 1000) for code, expires_ms in replies]


async def revoke_leases(redis: Redis, epoch: Epoch, revoked: Sequence[LeaseRevocation]) -> None:
    """End leases that the mesh no longer wants. Those that have ended stay as they are.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    touched = (_EPOCH, keys.OUTCOMES, keys.LEASES_DUE, *(keys.action(one.action) for one in revoked))
    marks = (mark for one in revoked for mark in (one.attempt, int(one.begun)))
    await call(redis, "revoke_leases_v2", touched, epoch, OUTCOMES.maxlen, *marks)


async def expire_leases(redis: Redis, epoch: Epoch, most: int) -> tuple[int, Seconds | None]:
    """End up to `most` leases that have expired, by Valkey's clock. Returns their number, and the Unix time at which
    the next one expires; None: no lease is held.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    touched = (_EPOCH, keys.OUTCOMES, keys.LEASES_DUE)
    ended, next_ms = await call(redis, "expire_leases_v1", touched, epoch, OUTCOMES.maxlen, most)
    return ended, next_ms / 1000 if next_ms else None


async def list_leases(redis: Redis, epoch: Epoch) -> None:
    """Publish the inventory of the node of leases, after the outcomes of those that have ended. O(leases held).

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    await call(redis, "list_leases_v1", (_EPOCH, keys.OUTCOMES, keys.LEASES_DUE), epoch, OUTCOMES.maxlen)


async def read_leases(redis: Redis, actions: Sequence[str]) -> list[LeaseRecord | None]:
    """Return the records of these actions, in one round trip. None: unknown."""
    pipe = redis.pipeline(transaction=False)
    for action in actions:
        pipe.hmget(keys.action(action), ["entry", "fence", "expires_ms", "ttl_ms", "ended", "answer"])
    return [_record(fields) for fields in await pipe.execute()]


async def read_lease(redis: Redis, action: str) -> LeaseRecord | None:
    """Return the record of one action. None: unknown."""
    fields = ("entry", "fence", "expires_ms", "ttl_ms", "ended", "answer")
    return _record(await command(redis, "HMGET", keys.action(action), *fields))


def _record(fields: Sequence[Any]) -> LeaseRecord | None:
    entry, fence, expires_ms, ttl_ms, ended, answer = fields
    if entry is None:
        return None
    how: LeaseEnding = _ENDINGS.get(ended or b"", "")
    return LeaseRecord(int(fence or 0), int(expires_ms or 0) / 1000, int(ttl_ms or 0) / 1000, how, answer)
