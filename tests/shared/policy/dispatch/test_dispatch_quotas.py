"""Quotas in the order of grants: what a waiting head reserves of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.stimuli import InventoryReported, NodeJoined
from shared.policy.model.formulation import EnvironmentNeed, Request
from shared.policy.model.quotas import QuotaLimits, Rate
from tests.shared.policy.dispatch.leading import ended, leading, report, submit
from tests.shared.policy.strategies import SPECS, request, work

TAKING = replace(work(), quotas={"model": 1.0})
ACTING = replace(TAKING, kind="act")


def acting(name: str, trajectory: str, seq: int) -> Request:
    return replace(request(name, ACTING, seq=seq), need=EnvironmentNeed(trajectory, "runtime", {"memory": 6}))


def test_a_head_that_waits_for_memory_of_environments_reserves_no_quota() -> None:
    dispatcher = Dispatcher(specs=SPECS)
    dispatcher.handle(0.0, QuotaSet("model", QuotaLimits((1.0,))))
    kinds = frozenset({"run", "act", "runtime"})
    dispatcher.handle(0.0, NodeJoined("n", "1", "cpu", {"cores": 4, "memory": 8}, kinds))
    dispatcher.handle(0.0, InventoryReported("n", "1", {}))
    (first,) = submit(dispatcher, acting("first", "t1", 1))
    assert not submit(dispatcher, acting("head", "t2", 2)), "t1 holds the memory"
    report(dispatcher, ended(first))
    (second,) = submit(dispatcher, acting("second", "t1", 3))
    assert second.action == "second", "t1 can never end otherwise"
    report(dispatcher, ended(second))
    (plain,) = submit(dispatcher, request("plain", TAKING, seq=4))
    assert plain.action == "plain"


@pytest.mark.parametrize(
    ("limits", "wake_s"),
    [
        (QuotaLimits((1.0,)), math.inf),  # only a report can free it
        (QuotaLimits((), (Rate(1.0, 5.0),)), 5.0),
        (QuotaLimits((1.0,), (Rate(1.0, 5.0),)), 5.0),
    ],
)
def test_the_next_wake_is_the_next_refill(limits: QuotaLimits, wake_s: float) -> None:
    dispatcher = leading("n")
    dispatcher.handle(0.0, QuotaSet("model", limits))
    assert dispatcher.next_wake_s == math.inf
    submit(dispatcher, request("first", TAKING, seq=1), request("second", TAKING, seq=2))
    assert dispatcher.next_wake_s == wake_s
