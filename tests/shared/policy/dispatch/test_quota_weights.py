"""Tenants share a quota with weights in proportion to them, in whatever lanes and pools their work waits."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.stimuli import ActionCancelled, InventoryReported, NodeJoined, NodeSeen, TickPassed
from shared.policy.model.formulation import Command, EnvironmentNeed, Grant, Work
from shared.policy.model.quotas import QuotaLimits, Rate
from tests.shared.policy.dispatch.leading import ended, leading, report, submit
from tests.shared.policy.dispatch.saturated_quota import SaturatedQuota
from tests.shared.policy.strategies import CORES, SLOTS, SPECS, reported, request, submitted, work

WEIGHTS = {"one": 1.0, "two": 2.0, "five": 5.0}
LIMITS = {
    "concurrency": QuotaLimits((16.0,), weights=WEIGHTS),
    "rate": QuotaLimits((), (Rate(20.0, 1.0, 5.0),), WEIGHTS),
    "both": QuotaLimits((30.0,), (Rate(40.0, 2.0), Rate(1e6, 86_400.0)), WEIGHTS),
}
OTHERS = {"tokens": QuotaLimits((), (Rate(1e6, 1.0),)), "other": QuotaLimits((500.0,))}


def taking(pool: str = CORES, **quotas: float) -> Work:
    return replace(work(pool, timeout_s=1000.0), quotas=quotas)


WORKS = {
    "one lane": {name: taking(api=1.0) for name in WEIGHTS},
    "other quotas beside it": {
        "one": taking(api=1.0),
        "two": taking(api=1.0, other=1.0),
        "five": taking(tokens=50.0, api=1.0),
    },
    "other pools": {"one": taking(CORES, api=1.0), "two": taking(SLOTS, api=1.0), "five": taking(CORES, api=1.0)},
    "other amounts": {"one": taking(api=2.5), "two": taking(SLOTS, api=1.0), "five": taking(api=0.7)},
}


@pytest.mark.parametrize(
    ("limits", "works", "of_tenants"),
    [*product(LIMITS, WORKS, [False]), *product(LIMITS, ["other pools"], [True])],
)
def test_shares_are_within_three_percent_of_the_weights(limits: str, works: str, of_tenants: bool) -> None:
    """Of the quota's weights, and without these of the tenants' own ones."""
    api = dataclasses.replace(LIMITS[limits], weights={}) if of_tenants else LIMITS[limits]
    made = SaturatedQuota(WORKS[works], {"api": api, **OTHERS}, weights=WEIGHTS if of_tenants else {})
    for name in WEIGHTS:
        made.join(name)
    made.run(200)
    first = len(made.grants)
    made.run(800)
    made.dispatcher.check()
    granted = made.amounts(first)
    total = sum(granted.values())
    for name, weight in WEIGHTS.items():
        assert granted[name] / total == pytest.approx(weight / 8.0, rel=0.03), granted


def test_trajectories_on_many_nodes_share_a_quota_equally() -> None:
    """Without any weights, and although each node has a lane of its own and all work of one tenant is older."""
    nodes, act = [f"n{at}" for at in range(12)], work(kind="act", timeout_s=1000.0)
    dispatcher = Dispatcher(specs=SPECS)
    dispatcher.handle(0.0, QuotaSet("api", QuotaLimits((6.0,), (Rate(6.0, 1.0),))))
    for name in nodes:
        capacity = {"cores": 64, "memory": 64}
        dispatcher.handle(0.0, NodeJoined(name, "1", "cpu", capacity, frozenset({"act", "runtime"})))
        dispatcher.handle(0.0, InventoryReported(name, "1", {}))

    def submit_next(now: float, trajectory: str, seq: int, quotas: dict[str, float]) -> list[Grant]:
        made = request(f"{trajectory}/{seq}", replace(act, quotas=quotas), at_s=now, seq=seq, tenant=trajectory[:3])
        need = EnvironmentNeed(trajectory, "runtime", {"memory": 1})
        return grants(dispatcher.handle(now, submitted(replace(made, need=need, deadline_s=1e9))))

    trajectories = [f"{tenant}{at}" for tenant in ("ada", "bob") for at in range(96)]
    for seq, name in enumerate(trajectories):
        for grant in submit_next(0.0, name, seq, {}):
            report(dispatcher, ended(grant))
    running = [
        grant for at, name in enumerate(trajectories, 1000) for grant in submit_next(1.0, name, at, {"api": 1.0})
    ]
    granted: Counter[str] = Counter()
    for second in range(2, 62):
        now, over, running = second + 0.01, running, []
        for name in nodes:
            dispatcher.handle(now, NodeSeen(name, "1"))
        for at, grant in enumerate(over):
            trajectory = grant.action.partition("/")[0]
            granted[trajectory[:3]] += second > 3
            running += grants(dispatcher.handle(now, reported(ended(grant))))
            running += submit_next(now, trajectory, 10_000 * second + at, {"api": 1.0})
        running += grants(dispatcher.handle(now, TickPassed()))
        dispatcher.check()
    assert granted.total() > 300, "the rate is used"
    assert granted["ada"] / granted.total() == pytest.approx(0.5, abs=0.015), granted


def grants(commands: list[Command]) -> list[Grant]:
    return [one for one in commands if isinstance(one, Grant)]


@pytest.mark.parametrize("used", [0.5, 1.5])
def test_what_was_really_used_counts(used: float) -> None:
    """All use another amount than they take; the shares stay, and the rate is used as before."""
    made = SaturatedQuota(WORKS["other pools"], {"api": QuotaLimits((), (Rate(20.0, 1.0, 60.0),), WEIGHTS)}, used=used)
    for name in WEIGHTS:
        made.join(name)
    made.run(400)
    first, began_s = len(made.grants), made.now
    made.run(800)
    granted = made.amounts(first)
    for name, weight in WEIGHTS.items():
        assert granted[name] / 800 == pytest.approx(weight / 8.0, rel=0.03), granted
    assert 800 * used / (made.now - began_s) == pytest.approx(20.0, rel=0.02), "the rate is used, and not more"


def test_an_idle_share_is_lent_and_comes_back_at_once() -> None:
    made = SaturatedQuota(WORKS["other pools"], {"api": LIMITS["rate"]})
    made.join("one")
    made.run(400)
    assert made.now == pytest.approx(400 / 20.0, abs=0.1), "it has the whole rate"
    for name in ("two", "five"):
        made.join(name)
    at = len(made.grants)
    made.run(20)
    granted = made.amounts(at)
    assert abs(granted["one"] - 2.5) <= 1.6, "one period"
    assert abs(granted["two"] - 5.0) <= 1.6
    made.run(580)
    granted = made.amounts(at)
    assert granted["five"] / 600 == pytest.approx(5 / 8, rel=0.03), "idleness is not saved up, nor is use"


@given(
    st.fixed_dictionaries(
        {name: st.tuples(st.sampled_from([0.1, 1.0, 3.0, 20.0]), st.sampled_from([0.5, 1.0, 4.0])) for name in WEIGHTS}
    ),
    st.permutations([CORES, CORES, SLOTS]),
)
@settings(deadline=None, max_examples=10)
def test_nobody_starves_whatever_the_weights(tenants: dict[str, tuple[float, float]], pools: list[str]) -> None:
    """Between two grants of a waiting tenant, another takes what its weight gives it for the first one's amount, and
    one amount more.
    """
    weights = {name: weight for name, (weight, _) in tenants.items()}
    works = {name: taking(pool, api=tenants[name][1]) for name, pool in zip(tenants, pools, strict=True)}
    made = SaturatedQuota(works, {"api": QuotaLimits((), (Rate(20.0, 1.0, 5.0),), weights)})
    for name in tenants:
        made.join(name)
    made.run(20)
    first = len(made.grants)
    made.run(250)
    since: dict[str, dict[str, float]] = {}
    for _, tenant, amount in made.grants[first:]:
        for name, taken in since.get(tenant, {}).items():
            most = amount / weights[tenant] * weights[name] + tenants[name][1]
            assert taken <= most + 1e-6, f"{name} took {taken} between two grants of {tenant}"
        since[tenant] = dict.fromkeys(tenants.keys() - {tenant}, 0.0)
        for name, others in since.items():
            if name != tenant:
                others[tenant] += amount


def test_a_tenant_that_waits_for_units_lends_its_turn() -> None:
    dispatcher = Dispatcher(specs=SPECS)
    dispatcher.handle(0.0, QuotaSet("api", QuotaLimits((2.0,), weights={"ada": 1.0, "bob": 1.0})))
    dispatcher.handle(0.0, NodeJoined("n", "1", "cpu", {"cores": 2, "slots": 4}, frozenset({"run"})))
    dispatcher.handle(0.0, InventoryReported("n", "1", {}))
    first, second = submit(dispatcher, *(request(f"a{at}", taking(api=1.0), tenant="ada", seq=at) for at in range(2)))
    wide = replace(taking(api=1.0), units={"cores": 2})
    assert not submit(dispatcher, request("wide", wide, tenant="bob", seq=3))
    assert not submit(dispatcher, request("slot", taking(SLOTS, api=1.0), tenant="ada", seq=4))
    commands = report(dispatcher, ended(first))
    assert [one.action for one in commands if isinstance(one, Grant)] == ["slot"], "bob needs two cores"
    commands = report(dispatcher, ended(second))
    assert [one.action for one in commands if isinstance(one, Grant)] == ["wide"]


def test_nobody_waits_for_the_turn_of_an_action_that_was_cancelled() -> None:
    dispatcher = leading("n", cores=64)
    dispatcher.handle(0.0, QuotaSet("api", QuotaLimits((4.0,), weights={"ada": 1.0, "bob": 9.0})))
    granted = submit(dispatcher, *(request(f"a{at}", taking(api=1.0), tenant="ada", seq=at) for at in range(4)))
    submit(dispatcher, request("wide", taking(api=4.0), tenant="bob", seq=10))
    submit(dispatcher, request("next", taking(api=1.0), tenant="ada", seq=11))
    assert not [one for one in report(dispatcher, ended(granted[0])) if getattr(one, "action", "") == "next"]
    commands = dispatcher.handle(1.0, ActionCancelled("wide", "not wanted"))
    assert "next" in [getattr(one, "action", "") for one in commands], commands
