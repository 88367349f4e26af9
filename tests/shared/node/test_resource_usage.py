"""Units of one resource: what is owned, what is used, and the integrals of both."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.node.resource_usage import ResourceUsage

EXIST = 6
START = 100.0


class ResourceUsageMachine(RuleBasedStateMachine):
    """Uses and owns units at random, beside a list of what is used."""

    def __init__(self) -> None:
        super().__init__()
        self.usage = ResourceUsage(EXIST)
        self.usage.integrate(START)
        self.uses: list[int] = []
        self.owned = EXIST
        self.now = START
        self.owned_unit_s = self.used_unit_s = 0.0

    @rule(units=st.integers(0, 7))
    def takes(self, units: int) -> None:
        self.usage.use(units, self.now)
        self.uses.append(units)

    @precondition(lambda self: self.uses)
    @rule(data=st.data())
    def gives_back(self, data: st.DataObject) -> None:
        self.usage.use(-self.uses.pop(data.draw(st.integers(0, len(self.uses) - 1))), self.now)

    @rule(units=st.integers(-2, 9))
    def owns(self, units: int) -> None:
        self.usage.own(units, self.now)
        self.owned = min(max(units, 0), EXIST)

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0]))
    def time_passes(self, seconds: float) -> None:
        used = sum(self.uses)
        self.now += seconds
        self.used_unit_s += used * seconds
        self.owned_unit_s += max(self.owned, used) * seconds

    @invariant()
    def units_add_up(self) -> None:
        used = sum(self.uses)
        assert (self.usage.owned, self.usage.used, self.usage.free) == (self.owned, used, EXIST - used)
        assert self.usage.held == max(self.owned, used), "what is used is held, whatever the share"

    @invariant()
    def unit_seconds_add_up(self) -> None:
        self.usage.integrate(self.now)
        assert self.usage.used_unit_s == pytest.approx(self.used_unit_s)
        assert self.usage.owned_unit_s == pytest.approx(self.owned_unit_s)


TestResourceUsage = ResourceUsageMachine.TestCase


def test_a_node_owns_all_units_at_first() -> None:
    assert (ResourceUsage(3).owned, ResourceUsage(3).prefetches) == (3, False)


def test_time_before_the_first_integration_is_not_counted() -> None:
    usage = ResourceUsage(3)
    usage.integrate(START)

    assert (usage.owned_unit_s, usage.used_unit_s) == (0.0, 0.0)
