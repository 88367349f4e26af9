"""Quotas in the order of grants: what a waiting head reserves of them, and which lanes sleep while they lack them."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from shared.policy.dispatch import blocked
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.stimuli import InventoryReported, NodeJoined, TargetReceived, TickPassed
from shared.policy.model.formulation import EnvironmentNeed, Grant, Request
from shared.policy.model.quotas import QuotaLimits, Rate
from shared.policy.resources.quotas import Quotas
from tests.shared.policy.dispatch.leading import beat, ended, leading, report, submit
from tests.shared.policy.strategies import CORES, SPECS, reported, request, submitted, work

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


def taking(name: str, quota: str, *, cores: int = 1, seq: int = 0, batch: str = "") -> Request:
    needs = replace(work(units={"cores": cores}, timeout_s=1000.0), quotas={quota: 1.0})
    return request(name, needs, seq=seq, batch=batch)


# ---- sleeping lanes --------------------------------------------------------------------------------------------------


def test_work_that_lacks_quotas_is_not_served_in_the_rounds_of_others() -> None:
    dispatcher = leading("n", cores=64)
    for number in range(20):
        dispatcher.handle(0.0, QuotaSet(f"q{number}", QuotaLimits((1.0,))))
    granted = submit(dispatcher, *(taking(f"a{number}", f"q{number}", seq=number) for number in range(20)))
    submit(dispatcher, *(taking(f"b{number}", f"q{number}", seq=20 + number) for number in range(20)))
    (plain,) = submit(dispatcher, request("plain", seq=99))
    report(dispatcher, ended(plain))
    lanes = dispatcher.cluster.queues.lanes
    assert (len(lanes.to_serve()), len(lanes.asleep)) == (0, 20)
    commands = report(dispatcher, ended(granted[7]))
    assert [one.action for one in commands if isinstance(one, Grant)] == ["b7"]
    assert len(lanes.asleep) == 19


def test_the_end_of_one_attempt_wakes_as_many_lanes_as_it_lets_start() -> None:
    """The first in order goes first, though all wait for the same quota on free nodes."""
    names = [f"n{number:02}" for number in range(20)]
    dispatcher = Dispatcher(specs=SPECS)
    kinds = frozenset({"run", "act", "runtime"})
    for name in names:
        dispatcher.handle(0.0, NodeJoined(name, "1", "cpu", {"cores": 4, "memory": 8}, kinds))
        dispatcher.handle(0.0, InventoryReported(name, "1", {}))
    dispatcher.handle(0.0, QuotaSet("model", QuotaLimits((20.0,))))
    begun = submit(dispatcher, *(acting(f"begin{number}", f"t{number}", number) for number in range(20)))
    dispatcher.handle(0.0, QuotaSet("model", QuotaLimits((1.0,))))
    report(dispatcher, *(ended(grant) for grant in begun))
    submit(dispatcher, *(acting(f"act{number}", f"t{number}", 40 - number) for number in range(20)))
    lanes = dispatcher.cluster.queues.lanes
    assert (len(lanes.awake), len(lanes.asleep)) == (0, 19)
    running = {name for held in dispatcher.cluster.granted.values() for name in held}
    order = sorted(running) + [f"act{number}" for number in reversed(range(20)) if f"act{number}" not in running]
    for at, name in enumerate(order[1:]):
        (hold,) = dispatcher.cluster.quotas.holds.values()
        last = Grant(hold.action, hold.node, hold.attempt, hold.stage, {}, 0.0)
        (grant,) = [one for one in report(dispatcher, ended(last)) if isinstance(one, Grant)]
        assert grant.action == name
        assert (len(lanes.to_serve()), len(lanes.asleep)) == (0, 18 - at)


def test_the_next_wake_stays_while_only_other_work_is_served() -> None:
    dispatcher = leading("n")
    dispatcher.handle(0.0, QuotaSet("model", QuotaLimits((), (Rate(1.0, 5.0),))))
    submit(dispatcher, request("first", TAKING, seq=1), request("second", TAKING, seq=2))
    (plain,) = submit(dispatcher, request("plain", seq=3))
    report(dispatcher, ended(plain))
    assert dispatcher.next_wake_s == 5.0
    (grant,) = dispatcher.handle(5.0, TickPassed())
    assert isinstance(grant, Grant)
    assert grant.action == "second"
    assert dispatcher.next_wake_s == math.inf


def test_sleeping_work_is_set_aside_if_its_quota_can_never_give_what_it_needs() -> None:
    dispatcher = leading("n")
    dispatcher.handle(0.0, QuotaSet("model", QuotaLimits((1.0,))))
    submit(dispatcher, request("first", TAKING, seq=1), request("second", TAKING, seq=2))
    assert dispatcher.cluster.queues.lanes.asleep
    dispatcher.handle(1.0, QuotaSet("model", None))
    dispatcher.check()
    (reason,) = dispatcher.waiting_reasons().actions.values()
    assert "there is no quota 'model'" in reason.text


def test_units_do_not_idle_for_a_quota_whose_holder_is_overdue() -> None:
    """It is overdue by 9 s and the head has waited for 10: it is assumed to stay for 4 s more."""
    dispatcher = leading("n", cores=4)
    dispatcher.handle(0.0, QuotaSet("model", QuotaLimits((1.0,))))
    first = replace(work(timeout_s=500.0), quotas={"model": 1.0}, duration_s=1.0)
    wide = replace(work(units={"cores": 4}), quotas={"model": 1.0})
    submit(dispatcher, request("first", first, seq=1), request("wide", wide, seq=2))
    longer, shorter = (replace(work(timeout_s=lasts_s), duration_s=lasts_s) for lasts_s in (4.5, 3.5))
    late = submitted(request("shorter", shorter, seq=3, tenant="bob"), request("longer", longer, seq=4, tenant="bob"))
    assert [one.action for one in dispatcher.handle(10.0, late) if isinstance(one, Grant)] == ["shorter"]


def test_a_quota_does_not_idle_for_a_head_whose_other_quota_has_an_overdue_holder() -> None:
    dispatcher = leading("n", cores=4)
    for quota in "ab":
        dispatcher.handle(0.0, QuotaSet(quota, QuotaLimits((1.0,))))
    first = replace(work(timeout_s=500.0), quotas={"a": 1.0}, duration_s=1.0)
    both = replace(work(timeout_s=500.0), quotas={"a": 1.0, "b": 1.0})
    submit(dispatcher, request("first", first, seq=1), request("both", both, seq=2))
    short = replace(work(timeout_s=0.5), quotas={"b": 1.0}, duration_s=0.5)
    (grant,) = dispatcher.handle(10.0, submitted(request("short", short, seq=3)))
    assert isinstance(grant, Grant)
    assert grant.action == "short"


LATE_S = 20.0


@pytest.mark.parametrize("patience", [blocked.QUOTA_PATIENCE, 0.0])
def test_a_head_gets_its_turn_also_if_one_holder_after_the_other_is_overdue(
    patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs two quotas. Their other holders are expected to take 1 s and take 20, and more of them always wait."""
    monkeypatch.setattr(blocked, "QUOTA_PATIENCE", patience)
    dispatcher, now, began_s = leading("n", cores=64), 0.0, math.inf
    needs = {name: replace(work(timeout_s=1.0), quotas={name: 1.0}, duration_s=1.0) for name in "ab"}
    for name in "ab":
        dispatcher.handle(0.0, QuotaSet(name, QuotaLimits((1.0,))))
    running = [(LATE_S, grant) for grant in submit(dispatcher, request("a", needs["a"], seq=1))]
    new = [request("both", replace(work(), quotas={"a": 1.0, "b": 1.0}), seq=2)]
    while now < 400.0 and began_s == math.inf:
        reports = [ended(grant) for end_s, grant in running if end_s <= now]
        running = [one for one in running if one[0] > now]
        commands = [*dispatcher.handle(now, submitted(*new)), *dispatcher.handle(now, reported(*reports))]
        for grant in (one for one in commands if isinstance(one, Grant)):
            running.append((now + LATE_S, grant))
            began_s = now if grant.action == "both" else began_s
        beat(dispatcher, now)
        now += 0.5
        new = [request(f"{name} {now}", needs[name], seq=3) for name in "ab"]
    assert began_s == (40.0 if patience else math.inf)


def test_a_sleeping_head_keeps_its_units_from_longer_work() -> None:
    dispatcher = leading("n", cores=4)
    dispatcher.handle(0.0, QuotaSet("model", QuotaLimits((1.0,))))
    first = replace(work(timeout_s=50.0), quotas={"model": 1.0}, duration_s=50.0)
    wide = replace(work(units={"cores": 4}), quotas={"model": 1.0})
    submit(dispatcher, request("first", first, seq=1), request("wide", wide, seq=2))
    assert dispatcher.cluster.queues.lanes.asleep
    longer, shorter = (replace(work(timeout_s=lasts_s), duration_s=lasts_s) for lasts_s in (60.0, 40.0))
    granted = submit(dispatcher, request("shorter", shorter, seq=3), request("longer", longer, seq=4))
    assert [grant.action for grant in granted] == ["shorter"]


# ---- costs and shares ------------------------------------------------------------------------------------------------


def test_the_ends_of_holds_matter_only_to_work_that_shares_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    def unneeded(quotas: Quotas, amounts: object, now: float) -> float:
        raise AssertionError(f"the time at which {amounts} are free is not needed")

    dispatcher = leading("n", cores=64)
    for name in ("model", "other"):
        dispatcher.handle(0.0, QuotaSet(name, QuotaLimits((1.0,))))
    submit(dispatcher, taking("first", "model", seq=1), taking("head", "model", seq=2))
    monkeypatch.setattr(Quotas, "free_at", unneeded)
    granted = submit(dispatcher, request("plain", seq=3), taking("another", "other", seq=4))
    assert [grant.action for grant in granted] == ["plain", "another"]


def test_nodes_own_no_units_for_heads_that_lack_quotas() -> None:
    dispatcher = leading("n", "m", cores=8)
    dispatcher.handle(0.0, QuotaSet("model", QuotaLimits((1.0,))))
    dispatcher.handle(0.0, TargetReceived(CORES, 2))
    (first,) = submit(dispatcher, taking("first", "model", seq=1, batch="b"))
    submit(dispatcher, taking("wide", "model", cores=6, seq=2, batch="b"))
    dispatcher.handle(0.5, TargetReceived(CORES, 3))

    def owned() -> int:
        return sum(node.limit("cores") for node in dispatcher.cluster.nodes.present.values())

    assert owned() == 3
    report(dispatcher, ended(first))
    assert owned() >= 6, "it has its quota now, and needs units"
    assert dispatcher.cluster.quotas.used == {"model": 1.0}
