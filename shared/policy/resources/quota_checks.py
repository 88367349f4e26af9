"""Invariants of quotas. Tests assert them after every step; services never do."""

from __future__ import annotations

import math

from shared.policy.resources.quotas import Quotas


def check_quotas(quotas: Quotas) -> None:
    """Assert the invariants. O(holds * quotas)."""
    assert quotas.ends.keys() == quotas.holds.keys() >= quotas.settling.taken.keys(), "each hold has a predicted end"
    by_node = {key: one for here in quotas.by_node.values() for key, one in here.items()}
    assert by_node == quotas.holds, "holds by node"
    assert quotas.by_node.keys() == {hold.node for hold in quotas.holds.values()}, "nodes with holds"
    for name in {*quotas.used, *(name for hold in quotas.holds.values() for name in hold.amounts)}:
        used = sum(hold.amounts.get(name, 0.0) for hold in quotas.holds.values())
        assert math.isclose(used, quotas.used.get(name, 0.0), abs_tol=1e-6), f"amounts held of {name}"
        holds = [
            (quotas.ends[key], key, hold.amounts[name]) for key, hold in quotas.holds.items() if name in hold.amounts
        ]
        assert sorted(holds) == quotas.holders.of(name), f"holds of {name} by predicted end"
    for name, brake in quotas.brakes.by_quota.items():
        assert name in quotas.limits, f"the brake of a deleted quota {name}"
        assert not brake.probe or brake.probe in quotas.holds, f"the probe of {name} holds nothing"
    quotas.brakes.check()
    quotas.settling.check()
