"""The order of writes with quotas: the store ends with the levels and holds of the ledger, and tenants take turns."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from redis.asyncio import Redis

from services.proxy.leader.interpreter import Interpreter
from services.proxy.leader.writes import HoldOrder, HoldsChanged, Write
from shared.bus.functions import Answering, Granting, Submission
from shared.bus.held_leases import LeaseAcquisition, LeaseGrant
from shared.bus.holds import Taking
from shared.policy.model.formulation import Grant
from shared.policy.model.quotas import QuotaHold, QuotaLimits, Rate, Settled
from shared.policy.resources.quotas import Quotas
from shared.runtime.units import Epoch
from tests.shared.policy.dispatch.dispatch_quotas import StoredQuotas

LIMITS = {
    "pace": QuotaLimits((), (Rate(50.0, 1.0), Rate(400.0, 60.0))),
    "calls": QuotaLimits((40.0,)),
    "money": QuotaLimits((), (Rate(1e6),)),
    "both": QuotaLimits((30.0,), (Rate(90.0, 7.0),)),
}
TENANTS = ("ada", "bob", "cyd")


def interpreter() -> Interpreter:
    """An interpreter whose writes are taken by the test."""
    return Interpreter(Redis(), Epoch(1), lambda *_: None, keep_batch_s=60.0)


def granting(quotas: Quotas, hold: QuotaHold) -> Granting:
    return Granting("g", hold.key.encode(), hold.action, "1:n", taking=Taking(hold, quotas.rates_of(hold.amounts)))


def answering(action: str, settled: tuple[Settled, ...]) -> Answering:
    return Answering(action, "1-0", "", b"{}", 60, settled=settled)


def write(store: StoredQuotas, flush: Sequence[Write], rng: Random) -> None:
    """Write a flush as the interpreter does: changes first, then answers beside grants."""
    for one in flush:
        if isinstance(one, HoldsChanged):
            store.change(one.settled)
    for part in rng.sample([Answering, Granting], 2):
        for one in flush:
            if isinstance(one, Answering) and part is Answering:
                store.change(one.settled)
            elif isinstance(one, Granting) and part is Granting and one.taking is not None:
                store.grant(Grant(one.action, "n", 1, 0, {}, 0.0, hold=one.taking.hold, rates=one.taking.rates))


def left(writes: Interpreter) -> list[str]:
    """Actions of all writes that wait, in the order in which they leave."""
    actions: list[str] = []
    while writes._waiting:
        actions += [one.action for one in writes._next() if isinstance(one, Granting | Answering)]
    return actions


def assert_same(store: StoredQuotas, ledger: Quotas, now: float) -> None:
    stored, held = ({key: dict(hold.amounts) for key, hold in one.holds.items()} for one in (store, ledger))
    assert stored == held
    for name, limits in LIMITS.items():
        for rate in limits.rates:
            assert store.missing(name, rate, now) == pytest.approx(ledger.missing(name, rate, now)), f"{name} {rate}"


@pytest.mark.parametrize("seed", range(20))
def test_the_store_ends_with_the_holds_and_levels_of_the_ledger(seed: int) -> None:
    """Flushes come at any time, and some are repeated."""
    rng, now = Random(seed), 1000.0
    ledger, store, writes = Quotas(dict(LIMITS)), StoredQuotas(dict(LIMITS)), interpreter()
    tenants: dict[str, str] = {}

    def flush() -> None:
        batch = writes._next()
        for _ in range(rng.choice([1, 1, 2])):
            write(store, batch, rng)

    for number in range(400):
        now += rng.choice([0.0, 0.0, 0.01, 0.3])
        step, action = rng.random(), f"a{number}"
        if step < 0.55:
            amounts = {name: rng.choice([0.3, 1.0, 2.5]) for name in rng.sample(sorted(LIMITS), rng.choice([1, 1, 2]))}
            if ledger.fits(amounts, now):
                hold = QuotaHold(action, 0, 1, "n", "1", now, amounts)
                ledger.take(hold, now + 1.0)
                tenants[action] = rng.choice(TENANTS)
                writes.put(granting(ledger, hold), tenants[action], (action,))
        elif ledger.holds and step < 0.9:
            ended = rng.sample(sorted(ledger.holds), min(len(ledger.holds), rng.choice([1, 1, 3])))
            for key in ended:
                ledger.settle(key, not_begun_s=now if rng.random() < 0.4 else None)
            changes = tuple(ledger.collect())
            if len(changes) == 1 and isinstance(changes[0], Settled) and rng.random() < 0.6:
                action = changes[0].action
                writes.put(answering(action, (changes[0],)), tenants[action], (action,))
            else:
                writes.put(HoldsChanged(changes))
        elif writes._waiting:
            flush()
    while writes._waiting:
        flush()
    assert_same(store, ledger, now)


@pytest.mark.parametrize(("adas", "bobs"), [("pace", "both"), ("calls", "calls"), ("money", "calls")])
def test_a_write_with_quotas_waits_for_one_turn_of_another_tenant(adas: str, bobs: str) -> None:
    quotas, writes = Quotas(dict(LIMITS)), interpreter()
    for number in range(1000):
        hold = QuotaHold(f"a{number}", 0, 1, "n", "1", float(number), {adas: 0.01})
        writes.put(granting(quotas, hold), "ada", (hold.action,))
    writes.put(granting(quotas, QuotaHold("b", 0, 1, "n", "1", 1e3, {bobs: 0.01})), "bob", ("b",))
    assert left(writes)[:3] == ["a0", "b", "a1"]


def test_an_answer_that_gives_nothing_back_to_a_rate_waits_for_one_turn() -> None:
    quotas, writes = Quotas(dict(LIMITS)), interpreter()
    for number in range(1000):
        hold = QuotaHold(f"a{number}", 0, 1, "n", "1", float(number), {"pace": 0.01})
        writes.put(granting(quotas, hold), "ada", (hold.action,))
    writes.put(answering("b", (Settled("b/0/1", "b"),)), "bob", ("b",))
    assert left(writes)[:3] == ["a0", "b", "a1"]


def test_tenants_that_use_the_same_rate_write_in_the_order_of_the_decisions() -> None:
    """A level that is changed in another order has another value."""
    quotas, writes = Quotas(dict(LIMITS)), interpreter()
    holds = [QuotaHold(f"a{number}", 0, 1, "n", "1", float(number), {"pace": 1.0}) for number in range(20)]
    for number, hold in enumerate(holds):
        writes.put(granting(quotas, hold), "ada" if number < 19 else "bob", (hold.action,))
    assert left(writes) == [hold.action for hold in holds]


def test_grants_and_acquisitions_that_take_from_rates_share_no_flush() -> None:
    """They leave in no order between them, and a level depends on the order of its changes."""

    def acquiring(*rates: tuple[str, Rate]) -> LeaseAcquisition:
        hold = QuotaHold("a", 0, 1, ":leases", "store", 1.0, {"pace": 1.0})
        return LeaseAcquisition(Submission("a", b"", "", b""), LeaseGrant("a", "1:n", 1, "", Taking(hold, rates)))

    def granting_from(*rates: tuple[str, Rate]) -> Granting:
        return Granting("g", b"", "b", "1:n", taking=Taking(QuotaHold("b", 0, 1, "n", "1", 1.0, {"pace": 1.0}), rates))

    pace = ("pace", Rate(50.0, 1.0))
    both: list[tuple[Write, Write]] = [
        (acquiring(pace), granting_from(pace)),
        (granting_from(pace), acquiring(pace)),
    ]
    for first, second in both:
        order = HoldOrder()
        assert (order.accepts(first), order.accepts(first), order.accepts(second)) == (True, True, False)
    order = HoldOrder()
    assert (order.accepts(acquiring(pace)), order.accepts(granting_from())) == (True, True), "slots have no order"
