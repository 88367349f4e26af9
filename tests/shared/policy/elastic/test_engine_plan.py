"""Plans of model calls compared with an oracle that tries every order, degree and chunk."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.elastic import engine_plan
from shared.policy.elastic.engine_plan import MOST_ADDED, EnginePlan, PlannableCall, PlannedPlace
from shared.policy.model.chunks import SIZES, ServedModel
from shared.policy.resources.engine_records import floats, service_row
from shared.policy.resources.restore_credits import NO_CREDITS
from tests.shared.policy.elastic.engine_oracle import (
    Case,
    Engine,
    Node,
    Replay,
    cheapest,
    options,
    random_case,
    recorded,
    replays,
    same,
)

ALL = 1_000_000
"""Places that no small case has."""
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    engine_plan.warm()


def near(cost: float | list[float]) -> object:
    return pytest.approx(cost, abs=1e-6)


@dataclass
class Followed:
    """A plan, and what it may be in the model: several orders explain calls that begin together."""

    case: Case
    plan: EnginePlan
    alike: list[Replay] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.alike = [Replay(0.0, (), self.case.state)]

    def search(self, calls: Sequence[PlannableCall], most: int = ALL) -> list[PlannedPlace] | None:
        """Search, and assert that the costs are the least if `most` permits all places."""
        room, price, following = self.plan.room, self.case.price, list[Replay]()
        places = self.plan.search(calls, price, most)
        for known in self.alike:
            least = cheapest(known.state, calls, price)
            if most == ALL or places is not None:  # one that is cut short may have found none
                assert (places is None) == math.isinf(least), f"seed {self.case.seed}: a plan costs {least}"
            for found in replays(known.state, calls, places or (), price) if places else ():
                if found.cost == near(least) or (most < ALL and found.cost > least):
                    following.append(Replay(found.cost, known.uses + found.uses, found.state))
        assert self.plan.room == room - (0 if places is None else len(calls))
        if places is not None:
            assert following, f"seed {self.case.seed}: {places} is not the best plan"
            self.alike = following
        return places

    def append(self, call: PlannableCall) -> PlannedPlace | None:
        """Add a call, and assert that its place costs least."""
        place = self.plan.append(call, self.case.price)
        self._keep_those_with(call, place, math.inf, added=place is not None)
        return place

    def now_on(self, call: PlannableCall) -> PlannedPlace | None:
        """Return the place now, and assert that it costs least."""
        room = self.plan.room
        place = self.plan.now_on(call, self.case.price)
        assert self.plan.room == room
        self._keep_those_with(call, place, 0.0, added=False)
        return place

    def _keep_those_with(self, call: PlannableCall, place: PlannedPlace | None, latest_s: float, added: bool) -> None:
        following = list[Replay]()
        for known in self.alike:
            found = [one for one in options(known.state, call, self.case.price) if one.place.begin_s <= latest_s]
            least = min((one.cost for one in found), default=math.inf)
            chosen = [one for one in found if place and same(one.place, place) and one.cost == near(least)]
            if not found and place is None:
                following.append(known)
            for one in chosen:
                following.append(Replay(least, (*known.uses, one), one.state) if added else known)
        assert following, f"seed {self.case.seed}: {place} does not cost least"
        self.alike = following


def followed(seed: int, late: float = 0.0) -> Followed:
    case = random_case(seed, late)
    return Followed(case, case.plan())


# ---- costs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(4))
def test_a_search_has_the_least_sum_of_costs(block: int) -> None:
    found = Counter[bool]()
    for seed in range(block * 500, block * 500 + 500):
        one = followed(seed, late=0.3)
        found[one.search(one.case.calls) is not None] += 1
    assert min(found[True], found[False]) > 20


@given(seeds, st.data())
@settings(max_examples=300)
def test_calls_are_appended_where_they_cost_least(seed: int, data: st.DataObject) -> None:
    one = followed(seed)
    calls = one.case.calls
    before, together = data.draw(st.integers(0, len(calls))), data.draw(st.integers(0, len(calls)))
    for call in calls[:before]:
        one.append(call)
    if calls[before:][:together]:
        one.search(calls[before:][:together])
    for call in (*calls[before:][together:], *calls):
        one.append(call)


@given(seeds)
@settings(max_examples=300)
def test_a_place_now_costs_least_and_adds_nothing(seed: int) -> None:
    one = followed(seed)
    calls = one.case.calls
    for call in calls:
        place = one.now_on(call)
        assert place is None or place.begin_s == 0.0
        assert place == one.now_on(call)
    one.search(calls)
    for call in calls:
        one.now_on(call)
        one.append(call)


@given(seeds)
@settings(max_examples=300)
def test_an_overdue_end_is_expected_as_much_later(seed: int) -> None:
    punctual, late = followed(seed), followed(seed, late=1.0)
    assert punctual.case.state == late.case.state
    assert punctual.search(punctual.case.calls) == late.search(late.case.calls)


def test_a_search_that_is_cut_short_is_a_plan_but_not_always_the_best() -> None:
    worse = 0
    for seed in range(1_000):
        cut, full = followed(seed), followed(seed)
        if cut.search(cut.case.calls, most=0) is not None:
            full.search(full.case.calls)
            worse += min(one.cost for one in cut.alike) > min(one.cost for one in full.alike) + 1e-6
            assert_valid(cut)
    assert worse > 0


# ---- validity ------------------------------------------------------------------------------------------------------


@given(seeds, st.booleans())
@settings(max_examples=300)
def test_plans_are_valid(seed: int, appended: bool) -> None:
    one = followed(seed)
    places = one.search(one.case.calls)
    if places is not None:
        assert [use.place.begin_s for use in one.alike[0].uses] == near(sorted(place.begin_s for place in places))
    for call in one.case.calls if appended else ():
        one.append(call)
    assert_valid(one)


def assert_valid(one: Followed) -> None:
    """Assert that a plan uses what there is, and each GPU and slot once."""
    calls, uses = {call.service: call for call in one.case.calls}, one.alike[0].uses
    for use in uses:
        begin_s, node, first, size = use.place
        at = SIZES.index(size)
        served, _, _, unusable, *_ = floats([calls[use.key[0]].rows[node]]).reshape(len(SIZES), -1)[at]
        assert use.place.numbers == tuple(range(first, first + size))
        assert first % size == 0
        assert first + size <= len(one.case.state[node].gb)
        assert served
        assert not int(unusable) >> first // size & 1
        assert 0.0 <= begin_s < use.end_s < math.inf
    for index, state in enumerate(one.case.state):
        here = [use for use in uses if use.place.node == index]
        granted = {gpu for use in here if use.place.begin_s == 0.0 for gpu in use.place.numbers}
        assert sum(state.free_s[gpu] == 0.0 for gpu in granted) <= state.grantable
        for gpu, until_s in enumerate(state.free_s):
            on_it = [(use.place.begin_s, use.end_s, use.key) for use in here if gpu in use.place.numbers]
            apart(on_it + ([(0.0, until_s, state.held[gpu] or (0, 0, 0))] if until_s else []))
        for key in {use.key for use in here}:
            slots = floats([calls[key[0]].rows[index]]).reshape(len(SIZES), -1)[SIZES.index(key[2]), 4]
            known = [
                slot_s for engine in state.engines if engine.key == key and key in state.held for slot_s in engine.slots
            ]
            for use in here:
                begin_s = use.place.begin_s
                assert use.key != key or slots >= sum(until_s > begin_s for until_s in known) + sum(
                    other.key == key and other.place.begin_s <= begin_s < other.end_s for other in here
                )


def apart(uses: Sequence[tuple[float, float, tuple[int, int, int]]]) -> None:
    """Assert that uses of a GPU by different engines do not overlap."""
    for begin_s, end_s, key in uses:
        for other_s, until_s, other in uses:
            assert key == other or end_s <= other_s + 1e-6 or until_s <= begin_s + 1e-6


def test_a_plan_has_limits() -> None:
    call, nodes = planned(1, 10.0), [recorded(Node((80.0,), (0.0,), (None,), (), 1), 0.0, random.Random(0))]
    plan = EnginePlan(nodes, 0.0, together=2)
    with pytest.raises(AssertionError, match="3 calls are too many"):
        plan.search([call] * 3, 0.0)
    begins_s = [place.begin_s for _ in range(MOST_ADDED - 1) if (place := plan.append(call, 0.0))]
    assert begins_s == [0.0, *(4.0 + 10.0 * number for number in range(1, MOST_ADDED - 1))]
    assert plan.room == 1
    with pytest.raises(AssertionError, match="2 calls are too many"):
        plan.search([call] * 2, 0.0)
    assert plan.append(call, 0.0)
    assert plan.room == 0
    with pytest.raises(AssertionError, match="the plan is full"):
        plan.append(call, 0.0)
    with pytest.raises(AssertionError, match="1 calls are too many"):
        plan.search([call], 0.0)


# ---- examples ------------------------------------------------------------------------------------------------------


def planned(service: int, last_s: float, concurrency: int = 1, gb: float = 45.0, evict_s: float = 0.0) -> PlannableCall:
    """Return a call that uses one GPU, whose restore takes 4 seconds."""
    model = ServedModel((1,), concurrency, awake_gb=gb, restore_s={1: 4.0}, evict_s={1: evict_s})
    lasts_s = [last_s, *[math.inf] * 3]
    return PlannableCall(service, lasts_s, [service_row(model)], [True], 1, NO_CREDITS)


def on(node: Node, overdue: float = 0.0) -> EnginePlan:
    return EnginePlan([recorded(node, 1000.0, random.Random(0), overdue)], 1000.0)


def begins(plan: EnginePlan, calls: Sequence[PlannableCall]) -> list[float | None]:
    places = [plan.append(call, 0.0) for call in calls]
    return [place and place.begin_s for place in places]


def test_a_call_has_a_place_at_any_price() -> None:
    """Bounds and costs are rounded in different ways. Long calls in front of thousands have costs above 10^7 s."""
    rng, engine = random.Random(0), Engine((1, 0, 1), 45.0, 0.0, 0.0, (0.0,))
    node = Node((80.0,), (0.0,), (None,), (engine,), 1)
    for _ in range(300):
        call, price = planned(1, rng.uniform(0.1, 4000.0)), 10.0 ** rng.uniform(0.0, 9.0)
        plan = on(node)
        assert plan.now_on(call, price) == on(node).append(call, price) == PlannedPlace(0.0, 0, 0, 1)


def test_calls_join_an_engine_when_its_first_call_begins_and_not_before() -> None:
    call = planned(1, 10.0, concurrency=3)
    idle = Engine((1, 0, 1), 45.0, 0.0, 0.0, (0.0,) * 3)
    for engines, end_s in (((), 36.0), ((idle,), 32.0)):
        node = Node((80.0,), (22.0,), (None,), engines, 0)
        assert begins(on(node), [call] * 4) == [22.0, 22.0, 22.0, end_s]
        places = on(node).search([call] * 4, 0.0)
        assert places is not None
        assert sorted(place.begin_s for place in places) == [22.0, 22.0, 22.0, end_s]
        plan = on(node)
        plan.append(call, 0.0)
        assert plan.now_on(call, 0.0) is None


@pytest.mark.parametrize(("last_end_s", "gpu"), [(8.0, 1), (10.0, 0)])
def test_a_call_that_begins_when_all_others_have_ended_joins_none(last_end_s: float, gpu: int) -> None:
    """Its cost is 22 alone on the engine, 20 beside another call, and 21 with a restore on the other GPU."""
    engine = Engine((1, 0, 1), 45.0, 0.0, 0.0, (8.0, 8.0, last_end_s))
    node = Node((80.0, 80.0), (last_end_s, 0.0), (engine.key, None), (engine,), 1)
    place = on(node).append(planned(1, 8.0, concurrency=3)._replace(sharers=2), 1.5)
    assert place is not None
    assert place.first == gpu


def test_a_planned_call_makes_its_engine_the_most_recent_one() -> None:
    """Beside the third service only one stays: the one that a planned call uses, so the other one leaves in 7 s."""
    engines = (Engine((1, 0, 1), 45.0, 7.0, 0.0, (0.0,)), Engine((2, 0, 1), 45.0, 1.0, 0.0, (0.0,)))
    node = Node((100.0,), (0.0,), (None,), engines, 1)
    assert begins(on(node), [planned(2, 10.0), planned(3, 5.0), planned(2, 3.0)]) == [0.0, 10.0, 10.0 + 7.0 + 4.0 + 5.0]
    assert begins(on(node), [planned(3, 5.0), planned(1, 3.0)]) == [0.0, 1.0 + 4.0 + 5.0]
    calls = [planned(1, 10.0, evict_s=7.0), planned(2, 10.0, evict_s=1.0), planned(3, 5.0), planned(2, 3.0)]
    assert begins(on(node._replace(engines=())), calls) == [0.0, 14.0, 28.0, 28.0 + 7.0 + 4.0 + 5.0]


def test_an_engine_is_in_use_until_its_last_overdue_call_ends() -> None:
    engine = Engine((1, 0, 1), 45.0, 0.0, 0.0, (3.0, 20.0, 8.0))
    node = Node((80.0,), (20.0,), (engine.key,), (engine,), 0)
    for overdue in (0.0, 1.0):
        assert begins(on(node, overdue), [planned(2, 1.0)]) == [20.0]
        assert begins(on(node, overdue), [planned(1, 1.0, concurrency=3)]) == [3.0]


def test_a_call_that_ends_now_has_not_ended() -> None:
    busy = recorded(Node((80.0,), (5.0,), (None,), (), 1), 1000.0, random.Random(0))
    plan = EnginePlan([busy], 1005.0)
    assert plan.now_on(planned(1, 1.0), 0.0) is None
    place = plan.append(planned(1, 1.0), 0.0)
    assert place is not None
    assert 0.0 < place.begin_s < 1e-3


def test_a_free_gpu_that_must_not_be_granted_now_waits_for_the_next_end_on_its_node() -> None:
    node = Node((80.0, 80.0, 80.0), (0.0, 0.0, 9.0), (None,) * 3, (), 1)
    assert begins(on(node), [planned(1, 50.0)] * 3) == [0.0, 9.0, 9.0]
    assert begins(on(node._replace(free_s=(0.0,) * 3, grantable=0)), [planned(1, 50.0)]) == [None]
