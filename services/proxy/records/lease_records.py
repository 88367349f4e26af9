"""Reads of leases by ids that callers give: an action that is no lease is not found.

The fields of a lease are in the hash of its action, and appear with its grant. Before, the journal entry has the kind.
"""

from __future__ import annotations

from typing import Final

import msgspec
from redis.asyncio import Redis

from shared.bus import held_leases
from shared.bus.actions import read_action, read_submission
from shared.bus.held_leases import LeaseRecord
from shared.messages import leases
from shared.messages.actions import ActionSubmitted

ATTEMPTS: Final = 2
"""Reads of the record: the action may be answered after the first one, and its journal entry is deleted with it."""


class _ActionAnswer(msgspec.Struct):
    """The field of an `Answer` that `LeaseNews` never has."""

    arrived_at: float = 0.0


_answer = msgspec.json.Decoder(_ActionAnswer).decode


def is_lease(submitted: ActionSubmitted) -> bool:
    """Return whether an action was submitted as a lease."""
    return bool(submitted.stages) and submitted.stages[0].kind == leases.KIND


async def read_known_lease(redis: Redis, lease: str) -> LeaseRecord | None:
    """Return the record of a lease. None: unknown, or an action that is no lease."""
    for _ in range(ATTEMPTS):
        record = await held_leases.read_lease(redis, lease)
        if record is None or record.fence:
            return record
        if record.answer is not None:
            return None if _answer(record.answer).arrived_at else record
        action = await read_action(redis, lease)
        submitted = None if action is None else await read_submission(redis, action.entry)
        if submitted is not None:
            return record if is_lease(submitted) else None
    return None
