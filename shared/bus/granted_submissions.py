"""Actions that the leader has granted before they are journaled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.functions import CODES, Granting, Receipt, Submission, call
from shared.bus.keys import KeyList, Role
from shared.runtime.units import Epoch

_EPOCH: Final = keys.epoch(Role.DISPATCHER)


class GrantedSubmission(NamedTuple):
    """One item of `submit_granted`: an action outside batches and trajectories, without quotas."""

    submission: Submission
    granting: Granting


def _alone(key: str) -> tuple[str]:
    return (key,)


async def submit_granted(
    redis: Redis,
    epoch: Epoch,
    submissions: Sequence[GrantedSubmission],
    *,
    max_journal: int,
    most_kept: int = 0,
    again: bool = False,
) -> list[Receipt]:
    """Journal actions, each one atomically together with its grant. One that is not accepted is not granted.

    Args:
        redis: the client.
        epoch: the leader's. It does not read these entries of the journal; its successor does.
        submissions: the actions.
        max_journal: most unanswered actions of the whole mesh.
        most_kept: bytes of Valkey's memory. Tenants whose kept answers take as much are rejected; 0: no bound.
        again: an earlier call with these actions may have been executed. This one then succeeds, also if memory is
            full.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
        Overloaded: Valkey's memory bound is reached; nothing was written.
    """
    if not submissions:
        return []
    touched = KeyList(_EPOCH, keys.ACTIONS, keys.KEPT, *(keys.action(one.submission.action) for one in submissions))
    args: list[Any] = [epoch, max_journal, most_kept]
    for submission, granting in submissions:
        stream = touched.position(granting.stream, _alone)
        args += (submission.digest, submission.tenant, submission.payload, granting.mark, stream, granting.payload)
    name = "submit_granted_again_v1" if again else "submit_granted_v1"
    replies = await call(redis, name, touched.listed, *args)
    return [Receipt(CODES[code], entry.decode()) for code, entry in replies]
