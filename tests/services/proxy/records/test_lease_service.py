"""Leases of callers that go while the leader decides."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.proxy.records.lease_service import LeaseService
from services.proxy.records.lease_waiters import LeaseWaiters
from shared.api.leases import AcquireRequest
from shared.messages.leases import GONE, GrantedLease
from shared.runtime.coarse_timers import CoarseTimers
from shared.runtime.errors import Unavailable


async def test_a_lease_that_is_granted_after_its_caller_has_gone_is_cancelled() -> None:
    journaled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    cancelled: list[tuple[str, str]] = []
    none, intake = cast("Any", None), cast("Any", SimpleNamespace(accepts_new=True))
    waiters = LeaseWaiters(none)
    waiters.leader = cast("Any", SimpleNamespace(acquire=lambda _: journaled))
    service = LeaseService(
        none,
        intake,
        none,
        none,
        waiters,
        lambda action, why: cancelled.append((action, why)),
        CoarseTimers(),
        replica="r",
        limit_s=10.0,
        most_waiting=10,
    )

    async def gone() -> None:
        return

    acquire = service.begin("t", AcquireRequest(quotas={"q": 1}))
    assert acquire is not None
    service.give_up(acquire)
    action = acquire.submitted.action
    waiters.granted([GrantedLease(action, 1, 1000, 1000)])
    journaled.set_result(True)
    with pytest.raises(Unavailable):
        await service.finish(acquire, gone)
    assert (cancelled, len(waiters)) == ([(action, GONE)], 0)
