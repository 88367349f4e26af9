"""Reads of actions in Valkey: their hashes, journal entries and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.messages.actions import ACTIONS, ActionSubmitted
from shared.runtime.validation import UNREADABLE


class ActionRecord(NamedTuple):
    """The hash of one action."""

    batch: str
    entry: str
    """Its journal entry."""
    granted: bool
    stage: int
    """Its current stage, while it is unanswered."""
    trajectory: str
    answer: bytes | None
    """Its answer, outside batches."""
    result: str
    """Id of its answer in its batch's stream; empty: none."""
    archived: bool
    """Its answer is in Postgres."""
    parked_s: float = 0.0
    """Time of the request to park it, Unix seconds; 0: it is not parked."""
    parked_because: str = ""
    resumes: bool = False
    """It is parked, and has been requested to continue."""


Wanted = Literal["", "parked", "resumed"]
"""What a caller has requested of a granted action. Empty: nothing, or it has been done: the action runs again."""


class Continuation(NamedTuple):
    """Data of an unanswered action that a new leader reads."""

    attempt: int
    """Number of its last grant in this stage; 0: none."""
    node: str
    """Node of that grant."""
    stage: int
    carried: bytes
    """Measurements of earlier stages, JSON; empty: none."""
    wanted: Wanted = ""
    """Newest request about parking of that grant."""
    resume: str = ""
    """Journal entry of that request, if it is one to resume."""


_FIELDS = ("batch", "entry", "grant", "stage", "trajectory", "answer", "result", "archived", "parking", "resume")


async def read_action(redis: Redis, action: str) -> ActionRecord | None:
    """Return the record of an action; None: unknown, or only a compact id is left."""
    return _record(await command(redis, "HMGET", keys.action(action), *_FIELDS))


async def read_actions(redis: Redis, actions: Sequence[str]) -> list[ActionRecord | None]:
    """Return the record of each action, in one round trip."""
    pipe = redis.pipeline(transaction=False)
    for action in actions:
        pipe.hmget(keys.action(action), list(_FIELDS))
    return [_record(fields) for fields in await pipe.execute()]


async def read_continuations(redis: Redis, actions: Sequence[str]) -> list[Continuation | None]:
    """Return how a new leader continues each action, in one round trip. None: it is in its first stage, not granted."""
    pipe = redis.pipeline(transaction=False)
    for action in actions:
        pipe.hmget(keys.action(action), ["grant", "stage", "carried", "parking", "resume"])
    found: list[Continuation | None] = []
    for grant, stage, carried, parking, resume in await pipe.execute():
        attempt, _, node = (grant or b"0:").decode().partition(":")
        continues = grant is not None or stage is not None
        wanted = _wanted(grant, parking, resume)
        entry = resume.decode() if wanted == "resumed" else ""
        continuation = Continuation(int(attempt), node, int(stage or 0), carried or b"", wanted, entry)
        found.append(continuation if continues else None)
    return found


def _wanted(grant: bytes | None, parking: bytes | None, resume: bytes | None) -> Wanted:
    """Return the newest request about parking, if it is about this grant and has not been done."""
    if grant is None or parking is None or not parking.startswith(grant + b" ") or resume == b"sent":
        return ""
    return "resumed" if resume else "parked"


async def read_submission(redis: Redis, entry: str) -> ActionSubmitted | None:
    """Return the submission of a journal entry. None: it is answered, or of another version."""
    for _, fields in await command(redis, "XRANGE", keys.ACTIONS, entry, entry):
        try:
            message = ACTIONS.decode(fields[1])
        except UNREADABLE:  # the leader will reject it
            return None
        return message if isinstance(message, ActionSubmitted) else None
    return None


async def read_result(redis: Redis, batch: str, result: str) -> bytes | None:
    """Return one answer of a batch's stream. None: it has been archived, or is just expiring."""
    rows = await command(redis, "XRANGE", keys.results(batch), result, result)
    return rows[0][1][1] if rows else None


async def is_known(redis: Redis, action: str, place: str) -> bool:
    """Return whether an action exists, has a compact id, or was answered in its trajectory.

    `place`: its batch or trajectory, or empty.
    """
    if await command(redis, "EXISTS", keys.action(action)):
        return True
    if not place:
        return False
    if await command(redis, "HEXISTS", keys.archived_of(place), action):
        return True
    return bool(await command(redis, "SISMEMBER", keys.acted(place), keys.action(action)))


def _record(fields: Sequence[Any]) -> ActionRecord | None:
    batch, entry, grant, stage, trajectory, answer, result, archived, parking, resume = fields
    if batch is None:
        return None
    parked_s, because = 0.0, ""
    if _wanted(grant, parking, resume):
        _, since_ms, reason = parking.decode().split(" ", 2)
        parked_s, because = int(since_ms) / 1000, reason
    return ActionRecord(
        batch.decode(),
        (entry or b"").decode(),
        grant is not None,
        int(stage or 0),
        (trajectory or b"").decode(),
        answer,
        (result or b"").decode(),
        archived is not None,
        parked_s,
        because,
        bool(parked_s and resume),
    )
