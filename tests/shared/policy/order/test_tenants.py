"""The fair queue: order inside a tenant, turns between tenants, effect of idleness."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.policy.order import tenants as order_tenants
from shared.policy.order.ebf import EbfKey
from shared.policy.order.tenants import LEAST_CHARGE_S, FairQueue

TENANTS = ("ada", "bob", "cyd")
tenants = st.sampled_from(TENANTS)


def key(at: float, arrival: int = 0) -> EbfKey:
    return EbfKey(at, 0.0, (0, arrival))


class FairQueueMachine(RuleBasedStateMachine):
    """Compared with lists: waiting actions in order, and the unit-seconds granted to each tenant."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue(weights={"bob": 2.0})
        self.waiting: dict[str, list[tuple[EbfKey, str]]] = {name: [] for name in TENANTS}
        self.charges: list[tuple[str, float, int]] = []
        self.count = 0
        self.promised = ""

    @precondition(lambda self: self.charges)
    @rule(which=st.integers(0, 9), part=st.floats(0, 1))
    def credit(self, which: int, part: float) -> None:
        head = self.queue.head()
        tenant, unit_s, since = self.charges.pop(which % len(self.charges))
        self.queue.credit(tenant, unit_s * part, since)
        assert self.queue.head() == head, "the turn is kept"

    @rule(tenant=tenants, at=st.integers(0, 5))
    def push(self, tenant: str, at: int) -> None:
        self.count += 1
        self.queue.push(tenant, key(at, self.count), f"a{self.count}")
        self.waiting[tenant].append((key(at, self.count), f"a{self.count}"))

    @rule(tenant=tenants, batch=st.sampled_from(["b1", "b2"]), at=st.integers(0, 5))
    def push_into_a_batch(self, tenant: str, batch: str, at: int) -> None:
        self.move(tenant, batch, at)
        self.count += 1
        self.queue.push(tenant, key(at, self.count), f"{batch} {self.count}", batch)
        self.waiting[tenant].append((key(at, self.count), f"{batch} {self.count}"))

    def grant(self, action: str, unit_s: float, *, is_head: bool) -> None:
        tenant = self.tenant_of(action)
        self.charges.append((tenant, unit_s, self.queue.charge(tenant, unit_s, ends_turn=is_head)))
        assert self.queue.remove(tenant, action)
        self.waiting[tenant] = [one for one in self.waiting[tenant] if one[1] != action]

    @precondition(lambda self: any(self.waiting.values()))
    @rule(unit_s=st.floats(0, 10))
    def grant_head(self, unit_s: float) -> None:
        head = self.queue.head()
        assert head is not None
        self.grant(head, unit_s, is_head=True)
        if self.waiting.get(self.promised):
            assert self.tenant_of(self.queue.head()) == self.promised
        self.promised = ""

    @precondition(lambda self: any(self.waiting.values()) and not self.waiting.get(self.promised))
    @rule(tenant=tenants)
    def promise_the_next_turn(self, tenant: str) -> None:
        head = self.queue.head()
        self.queue.turn_next(tenant)
        assert self.queue.head() == head, "the turn is kept"
        if self.waiting[tenant] and self.tenant_of(head) != tenant:
            self.promised = tenant

    @precondition(lambda self: any(self.waiting.values()))
    @rule(unit_s=st.floats(0, 10), which=st.integers(0, 9))
    def pass_the_head(self, unit_s: float, which: int) -> None:
        order = list(self.queue)
        chosen, head = order[which % len(order)], order[0]
        if chosen != head:
            self.grant(chosen, unit_s, is_head=False)
            assert self.tenant_of(self.queue.head()) == self.tenant_of(head), "the turn is kept"

    def tenant_of(self, action: str | None) -> str:
        return next(name for name in TENANTS if action in [one for _, one in self.waiting[name]])

    @rule(tenant=tenants, batch=st.sampled_from(["b1", "b2"]), at=st.integers(0, 5))
    def move(self, tenant: str, batch: str, at: int) -> None:
        self.queue.move(tenant, batch, at)
        self.waiting[tenant] = [
            (old._replace(expected_completion_s=at) if action.startswith(batch) else old, action)
            for old, action in self.waiting[tenant]
        ]

    @precondition(lambda self: any(self.waiting.values()))
    @rule(which=st.integers(0, 9), priority=st.integers(-2, 2))
    def update(self, which: int, priority: int) -> None:
        """The order of tenants does not depend on the keys inside one."""
        order = list(self.queue)
        chosen = order[which % len(order)]
        owners, tenant = [self.tenant_of(one) for one in order], self.tenant_of(chosen)
        old = next(key for key, action in self.waiting[tenant] if action == chosen)
        new = old._replace(priority=priority)
        assert self.queue.update(tenant, new, chosen)
        self.waiting[tenant] = [(new if action == chosen else key, action) for key, action in self.waiting[tenant]]
        assert [self.tenant_of(one) for one in self.queue] == owners

    @rule(tenant=tenants)
    def remove_an_unknown_action(self, tenant: str) -> None:
        assert not self.queue.remove(tenant, "stranger")
        assert not self.queue.update(tenant, key(0.0), "stranger")

    @invariant()
    def the_order_is_by_tenant_and_in_each_earliest_first(self) -> None:
        self.queue.check()
        order = list(self.queue)
        assert len(order) == len(self.queue) == sum(map(len, self.waiting.values()))
        for name in TENANTS:
            lane = [action for _, action in sorted(self.waiting[name])]
            assert [action for action in order if action in lane] == lane
        assert self.queue.head() == (order[0] if order else None)
        if order:
            assert self.queue.head_key() == min(self.waiting[self.tenant_of(order[0])])[0]


TestFair = FairQueueMachine.TestCase


def test_an_empty_queue_has_no_head_tenant() -> None:
    queue = FairQueue()
    assert queue.head() is None
    assert list(queue) == []
    with pytest.raises(IndexError, match="the queue is empty"):
        queue.head_key()


@given(st.lists(st.tuples(tenants, st.floats(0.0, 5.0)), min_size=1, max_size=80))
def test_the_one_furthest_behind_is_served(costs: list[tuple[str, float]]) -> None:
    """While all have work, used over weight differs by one grant at most: the last one of the tenant ahead."""
    queue = FairQueue(weights={"ada": 0.5, "cyd": 3.0})
    weight = {"ada": 0.5, "bob": 1.0, "cyd": 3.0}
    owner = {}
    for at, (_, _) in enumerate(costs):
        for name in TENANTS:
            owner[f"{name}{at}"] = name
            queue.push(name, key(at), f"{name}{at}")
    used = dict.fromkeys(TENANTS, 0.0)
    worst = 0.0
    for _, unit_s in costs:
        head = queue.head()
        assert head is not None
        name = owner[head]
        queue.charge(name, unit_s)
        queue.remove(name, head)
        used[name] += max(unit_s, LEAST_CHARGE_S) / weight[name]
        worst = max(worst, max(unit_s, LEAST_CHARGE_S) / weight[name])
        assert max(used.values()) - min(used.values()) <= worst + 1e-9


def test_work_that_takes_no_time_does_not_keep_others_waiting() -> None:
    queue = FairQueue()
    for at in range(3):
        queue.push("ada", key(0.0, at), f"a{at}")
    queue.push("bob", key(0.0), "b")
    served = []
    for _ in range(2):
        head = queue.head()
        assert head is not None
        tenant = "ada" if head.startswith("a") else "bob"
        queue.charge(tenant, 0.0)
        queue.remove(tenant, head)
        served.append(head)
    assert served == ["a0", "b"]


def test_idleness_is_not_saved_up() -> None:
    """Bob comes after Ada has used 100 s: he starts level with her, not 100 s behind."""
    queue = FairQueue()
    for at in range(200):
        queue.push("ada", key(0.0, at), f"ada{at}")
    for at in range(100):
        queue.charge("ada", 1.0)
        queue.remove("ada", f"ada{at}")
    for at in range(100):
        queue.push("bob", key(0.0, at), f"bob{at}")
    served = []
    for _ in range(20):
        head = queue.head()
        assert head is not None
        tenant = head[:3]
        queue.charge(tenant, 1.0)
        queue.remove(tenant, head)
        served.append(tenant)
    assert served.count("bob") == 10


def test_a_credit_leaves_a_tenant_as_if_less_had_been_charged() -> None:
    """Ada is granted 10 s twice and uses 1 s of the first; so bob, who was granted 12 s, waits for her third grant."""
    queue = FairQueue({"ada": 2.0, "bob": 2.0})
    for at in range(3):
        queue.push("ada", key(0.0, at), f"a{at}")
        queue.push("bob", key(0.0, at), f"b{at}")
    since = queue.charge("ada", 10.0)
    queue.remove("ada", "a0")
    queue.charge("bob", 12.0)
    queue.remove("bob", "b0")
    queue.charge("ada", 10.0)
    queue.remove("ada", "a1")
    assert queue.head() == "b1"
    queue.charge("bob", 0.0)
    queue.remove("bob", "b1")
    queue.credit("ada", 9.0, since)
    queue.check()
    assert queue.head() == "a2", "11 s against 12"


@pytest.mark.parametrize("emptied", [False, True])
def test_a_credit_for_a_charge_that_no_longer_counts_changes_nothing(emptied: bool) -> None:
    """The tenant has started again, from nothing or level with the others, and has been charged since."""
    queue = FairQueue()
    queue.push("ada", key(0.0), "a0")
    if not emptied:
        queue.push("bob", key(0.0), "b0")
        queue.push("bob", key(1.0), "b1")
    since = queue.charge("ada", 10.0)
    queue.remove("ada", "a0")
    if not emptied:
        queue.charge("bob", 50.0)
        queue.remove("bob", "b0")
    for at in range(1, 3):
        queue.push("ada", key(0.0, at), f"a{at}")
    queue.push("cyd", key(0.0), "c0")
    queue.charge("ada", 5.0)
    queue.remove("ada", "a1")
    queue.credit("ada", 9.0, since)
    queue.check()
    assert list(queue)[-1] == "a2", "the others are 5 s behind her"


def test_the_first_promise_of_the_next_turn_holds_once() -> None:
    """Ada and bob were granted far more than cyd. A promise to a tenant that has gone is forgotten."""
    queue = FairQueue()
    for name in TENANTS:
        for at in range(4):
            queue.push(name, key(at), f"{name[0]}{at}")
    for name in ("ada", "bob"):
        queue.charge(name, 100.0)
        queue.remove(name, f"{name[0]}0")
    served = []
    for promises in (["bob", "ada"], [], ["ada", "bob"], ["cyd"], []):
        head = queue.head()
        assert head is not None
        for name in promises:
            queue.turn_next(name)
        owner = next(name for name in TENANTS if name[0] == head[0])
        queue.charge(owner, 1.0)
        queue.remove(owner, head)
        served.append(head)
        if head == "c1":
            for at in range(1, 4):
                queue.remove("ada", f"a{at}")
    assert served == ["c0", "b1", "c1", "c2", "c3"]


def test_a_tenant_cannot_win_by_leaving_and_coming_back() -> None:
    """Its virtual time is kept while others wait."""
    queue = FairQueue()
    queue.push("ada", key(0.0), "a0")
    queue.push("bob", key(0.0), "b0")
    queue.charge("ada", 50.0)
    queue.remove("ada", "a0")
    queue.push("ada", key(0.0, 1), "a1")
    assert queue.head() == "b0"


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(0, 9), st.integers(0, 9))
def test_before_yields_the_tenants_actions_before_a_key(keys: list[int], mine: int, most: int) -> None:
    queue = FairQueue()
    for at, one in enumerate(keys):
        queue.push("ada", key(one, at), f"a{at}")
        queue.push("bob", key(0.0, at), f"b{at}")
    new_key = key(mine, len(keys))
    before = [f"a{at}" for _, at in sorted((one, at) for at, one in enumerate(keys)) if keys[at] <= mine]
    assert list(queue.before("ada", new_key, most=most)) == before[:most]
    assert list(queue.before("cyd", new_key)) == []


@pytest.mark.parametrize("lasts_s", [0, 3])
def test_tenants_that_have_gone_are_forgotten_while_others_wait(lasts_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that is never empty keeps a bounded number of idle tenants, however many have come."""
    monkeypatch.setattr(order_tenants, "MOST_IDLE", 40)
    queue = FairQueue()
    for number in range(600):
        queue.push(f"t{number}", key(number, number), f"a{number}")
        if number >= 10:
            head = queue.head()
            assert head is not None
            queue.charge(f"t{head[1:]}", lasts_s * (1 + number % 3))
            queue.remove(f"t{head[1:]}", head)
        assert len(queue._virtual) - len(queue._queues) <= 40 + 1
    queue.check()


def test_an_idle_tenant_keeps_what_it_owes_and_no_more() -> None:
    queue = FairQueue()
    for tenant in ("ada", "bob", "cyd"):
        queue.push(tenant, key(1.0), f"{tenant} 1")
    for tenant, unit_s in (("ada", 5.0), ("bob", 2.0)):
        queue.push("cyd", key(2.0), f"cyd {tenant}")
        queue.charge(tenant, unit_s)
        queue.remove(tenant, f"{tenant} 1")
    queue.charge("cyd", 3.0)
    queue.push("dan", key(1.0), "dan 1")
    assert queue._virtual == {"ada": 5.0, "cyd": 3.0, "dan": 3.0}
    queue.push("ada", key(0.0), "ada 2")
    assert list(queue._virtual.values()) == [5.0, 3.0, 3.0]
    queue.check()
