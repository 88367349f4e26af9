"""Entries that were read: another tenant's are handled soon, and order stays where one entry depends on another."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from services.proxy.leader.arrivals import HANDLED_SHARED, ActionOwner, Arrivals, names_of
from shared.bus.tail import Entry
from shared.messages.actions import ActionSubmitted, CancelRequested, CloseRequested, UnreadableEntry
from shared.messages.nodes import NODES, Bye
from shared.messages.outcomes import OUTCOMES, EnvironmentCreated, Started
from tests.services.proxy.mesh import (
    START,
    acting,
    ended,
    entry,
    from_node,
    hello,
    inventory,
    journalled,
    outcome,
    submitted,
)


class ArrivalsDriver:
    """Arrivals, and the owners of the actions that were handled."""

    def __init__(self) -> None:
        self.unanswered: dict[str, ActionSubmitted] = {}
        self.arrivals = Arrivals(self._owner, lambda *node: node == ("n", "1"))

    def _owner(self, action: str) -> ActionOwner:
        kept = self.unanswered.get(action)
        return ActionOwner() if kept is None else ActionOwner(kept.tenant, names_of(kept))

    def put(self, *entries: Entry[Any], drained: bool = True) -> None:
        self.arrivals.put(entries, drained=drained)

    def take(self) -> list[Any]:
        """Messages of one part."""
        messages = [one.message for one in self.arrivals.take()]
        self.unanswered |= {one.action: one for one in messages if isinstance(one, ActionSubmitted)}
        return messages

    def parts(self) -> list[list[Any]]:
        parts = []
        while self.arrivals:
            parts.append(self.take())
        return parts


@pytest.fixture
def driver() -> ArrivalsDriver:
    return ArrivalsDriver()


def of(tenant: str, count: int, batch: str = "") -> list[Entry[Any]]:
    names = [f"{tenant}{number}" for number in range(count)]
    return [journalled(msgspec.structs.replace(submitted(name, batch=batch), tenant=tenant)) for name in names]


def outcomes(tenant: str, numbers: Iterable[int]) -> list[Entry[Any]]:
    return [from_node(outcome(f"{tenant}{number}")) for number in numbers]


def where(parts: list[list[Any]], found: Any) -> tuple[int, int]:
    """Part and place of the message."""
    ((part, place),) = [
        (part, place) for part, each in enumerate(parts) for place, one in enumerate(each) if one == found
    ]
    return part, place


def test_what_was_read_of_one_tenant_is_handled_together_in_its_order(driver: ArrivalsDriver) -> None:
    entries = [*of("ada", 500), entry(NODES, hello()), *outcomes("ada", range(100))]
    driver.put(*entries)
    assert driver.take() == [one.message for one in entries]
    assert not driver.arrivals


def test_another_tenants_submission_is_in_the_first_small_part(driver: ArrivalsDriver) -> None:
    many, (single,) = of("ada", 1000), of("bob", 1)
    driver.put(*many, single)
    parts = driver.parts()
    assert where(parts, single.message) == (0, 1)
    assert len(parts[0]) == 2, "it waits for no more of the others"
    assert max(map(len, parts)) == HANDLED_SHARED
    assert [one for part in parts for one in part if one.tenant == "ada"] == [one.message for one in many]


def test_a_submission_that_comes_later_overtakes_those_that_wait(driver: ArrivalsDriver) -> None:
    driver.put(*of("ada", 1000), *of("bob", 1))
    driver.take()
    late = msgspec.structs.replace(submitted("late"), tenant="bob")
    driver.put(journalled(late))
    assert late in driver.take()


def test_another_tenants_outcome_is_in_the_next_part(driver: ArrivalsDriver) -> None:
    driver.put(*of("ada", 400), *of("bob", 1))
    driver.parts()
    driver.put(*outcomes("ada", range(400)), *outcomes("bob", [0]))
    parts = driver.parts()
    assert [one.action for one in parts[0][:2]] == ["ada0", "bob0"]
    assert max(map(len, parts)) == HANDLED_SHARED


def test_outcomes_do_not_wait_for_submissions(driver: ArrivalsDriver) -> None:
    driver.put(*of("ada", 1), *of("bob", 1))
    driver.take()
    driver.put(*of("ada", 1000, batch="more"), *outcomes("ada", [0]))
    assert outcome("ada0") in driver.take()


@pytest.mark.parametrize("names", [{"batch": "x"}, {"action": "ada999"}])
def test_a_cancellation_follows_the_submissions_that_it_names(driver: ArrivalsDriver, names: dict[str, str]) -> None:
    asked = CancelRequested(**names)
    driver.put(*of("ada", 1000, batch="x"), *of("bob", 1), journalled(asked))
    parts = driver.parts()
    last = [one for part in parts for one in part if isinstance(one, ActionSubmitted) and one.action == "ada999"]
    assert where(parts, asked) > where(parts, last[0])


def test_a_cancellation_of_handled_work_does_not_wait_for_other_submissions(driver: ArrivalsDriver) -> None:
    driver.put(*of("ada", 1000, batch="x"), *of("bob", 1))
    driver.take()
    asked = CancelRequested(action="bob0")
    driver.put(journalled(asked))
    assert asked in driver.take()


def test_the_end_of_a_trajectory_follows_its_actions(driver: ArrivalsDriver) -> None:
    acts = [journalled(acting(f"a{number}")) for number in range(300)]
    asked = CloseRequested(trajectory="t1")
    driver.put(*acts, *of("bob", 1), journalled(asked))
    assert driver.parts()[-1][-1] == asked


def test_an_unreadable_entry_precedes_the_cancellation_of_its_action(driver: ArrivalsDriver) -> None:
    unreadable = UnreadableEntry(action="lost", batch="x", error="why")
    asked = CancelRequested(action="lost")
    driver.put(*of("ada", 100), *of("bob", 100), journalled(unreadable), journalled(asked))
    parts = driver.parts()
    assert where(parts, unreadable) < where(parts, asked)


def test_an_inventory_follows_all_earlier_outcomes(driver: ArrivalsDriver) -> None:
    driver.put(*of("ada", 300), *of("bob", 1))
    driver.parts()
    last = inventory()
    driver.put(*outcomes("ada", range(299)), *outcomes("bob", [0]), from_node(last), *outcomes("ada", [299]))
    handled = [one for part in driver.parts() for one in part]
    assert handled.index(last) == 300
    assert handled[-1] == outcome("ada299")


def test_the_end_of_an_environment_follows_its_outcomes_and_delays_no_other_tenant(driver: ArrivalsDriver) -> None:
    act, gone = acting("act", trajectory="t9"), ended("t9")
    driver.put(*of("ada", 300), journalled(act), *of("bob", 1))
    driver.parts()
    verdict = outcome("act")
    driver.put(*outcomes("ada", range(300)), from_node(verdict), from_node(gone), *outcomes("bob", [0]))
    parts = driver.parts()
    assert where(parts, verdict) < where(parts, gone)
    assert where(parts, outcome("bob0"))[0] == 0


def test_submissions_and_outcomes_are_handled_in_turn_while_shared(driver: ArrivalsDriver) -> None:
    driver.put(*of("ada", 200), *of("bob", 1))
    driver.parts()
    driver.put(*of("ada", 200, batch="more"), *outcomes("ada", range(200)))
    kinds = [{type(one) for one in part} for part in driver.parts()]
    assert all(len(kind) == 1 for kind in kinds)
    assert all(one != other for one, other in itertools.pairwise(kinds))


def test_messages_about_one_action_keep_their_order(driver: ArrivalsDriver) -> None:
    driver.put(journalled(acting("a")), *of("bob", 300))
    driver.parts()
    started = Started(action="a", node="n", epoch=7, attempt=1)
    made = EnvironmentCreated(node="n", incarnation="1", trajectory="t1")
    driver.put(
        *outcomes("bob", range(300)), entry(OUTCOMES, started), entry(OUTCOMES, made), from_node(outcome("a")),
    )  # fmt: skip
    handled = [one for part in driver.parts() for one in part]
    assert handled.index(started) < handled.index(made) < handled.index(outcome("a"))


LEAVING = [Bye(node="n", incarnation="1"), hello(incarnation="2")]


@pytest.mark.parametrize("left", LEAVING)
def test_the_end_of_an_incarnation_follows_the_outcomes_that_were_published_before(
    driver: ArrivalsDriver, left: Any
) -> None:
    """They are on two streams, and that of nodes is read first."""
    before, after = outcomes("ada", range(300)), from_node(outcome("ada300"), at=START + 2.0)
    driver.put(*of("ada", 301), *of("bob", 1))
    driver.parts()
    driver.put(entry(NODES, left, at=START + 1.0), *before, *outcomes("bob", [0]), after)
    parts = driver.parts()
    assert len(parts) > 1, "the outcomes wait for turns"
    handled = [one for part in parts for one in part]
    assert handled.index(left) == 301
    assert handled[-1] == after.message


@pytest.mark.parametrize("left", LEAVING)
def test_the_end_of_an_incarnation_waits_until_earlier_outcomes_were_read(driver: ArrivalsDriver, left: Any) -> None:
    """A read returns a part of the outcomes while many were published."""
    driver.put(entry(NODES, left, at=START + 1.0), *outcomes("ada", range(3)), drained=False)
    assert left not in driver.take()
    assert driver.arrivals, "more must be read without a wait"
    driver.put(*outcomes("ada", range(3, 6)), drained=False)
    assert left not in driver.take()
    driver.put(*outcomes("ada", range(6, 8)), from_node(outcome("ada9"), at=START + 2.0), drained=False)
    assert [one.action for one in driver.take() if one != left] == ["ada6", "ada7", "ada9"]
    driver.put(entry(NODES, left, at=START + 3.0), *outcomes("ada", range(10, 12)), drained=False)
    driver.put(drained=True)
    assert driver.take()[-1] == left


def test_an_end_of_an_incarnation_of_one_tenants_read_follows_its_outcomes(driver: ArrivalsDriver) -> None:
    driver.put(*of("ada", 2), entry(NODES, LEAVING[0]), *outcomes("ada", range(2)))
    assert driver.take()[-1] == LEAVING[0]


def test_messages_of_other_streams_do_not_wait(driver: ArrivalsDriver) -> None:
    driver.put(*of("ada", 1000), *of("bob", 1000), entry(NODES, hello()))
    assert hello() in driver.take()
