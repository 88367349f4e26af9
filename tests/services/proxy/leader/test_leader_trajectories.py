"""The leader and trajectories: its writes for their entries, their receivers and order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from services.proxy.leader.leader import Leader
from services.proxy.leader.writes import Forget
from shared.bus.functions import Answering, Granting
from shared.bus.trajectories import StoredPlacement
from shared.messages.actions import CancelRequested, CloseRequested, PriorityRequested
from shared.messages.environments import TRAJECTORIES, EnvironmentsExpected, EnvironmentSpec
from shared.messages.grants import EnvironmentClosed, ImageRequested
from shared.messages.outcomes import ImagesChanged
from tests.services.proxy.mesh import (
    EPOCH,
    SPEC,
    START,
    StillClock,
    WriteRecorder,
    acting,
    answers,
    discards,
    ended,
    entry,
    forgotten,
    from_node,
    granted,
    hello,
    inventory,
    journalled,
    leader_of,
    messages_to,
    outcome,
)


class LeaderDriver:
    """A leader with one node that can create environments and has sent its inventory."""

    def __init__(self, *, memory_mb: int = 4096) -> None:
        self.clock = StillClock()
        self.recorder = WriteRecorder()
        self.leader: Leader = leader_of(self.recorder, self.clock)
        self.take(from_node(hello(memory_mb=memory_mb)), from_node(inventory()))

    def take(self, *entries: Any) -> list[Any]:
        self.leader.take(list(entries))
        self.leader.dispatcher.check()
        return self.recorder.take()


@pytest.fixture
def driver() -> LeaderDriver:
    return LeaderDriver()


def close(trajectory: str = "t1") -> Any:
    return journalled(CloseRequested(trajectory=trajectory))


def body(answer: Answering) -> dict[str, Any]:
    return msgspec.json.decode(answer.answer, type=dict[str, Any])


def ends(writes: list[Any]) -> list[tuple[str, str]]:
    return [(body(one)["id"], body(one)["ended"]) for one in answers(writes)]


def test_the_first_action_brings_its_environment_and_is_written_with_its_place(driver: LeaderDriver) -> None:
    (write,) = driver.take(journalled(acting("a")))

    assert isinstance(write, Granting)
    assert (write.trajectory, msgspec.msgpack.decode(write.placement, type=StoredPlacement)) == (
        "t1",
        StoredPlacement("n", {"memory_mb": 512}),
    )
    (grant,) = granted([write])
    assert (grant.trajectory, grant.environment, grant.work) == ("t1", SPEC, "env.bash")


def test_later_actions_use_the_existing_environment(driver: LeaderDriver) -> None:
    driver.take(journalled(acting("a")))
    driver.take(from_node(outcome("a")))

    (write,) = driver.take(journalled(acting("b")))

    assert (write.trajectory, write.placement) == ("", b"")
    assert [(one.trajectory, one.environment) for one in granted([write])] == [("t1", None)]


def test_actions_of_one_trajectory_go_one_at_a_time_in_their_order(driver: LeaderDriver) -> None:
    writes = driver.take(*(journalled(acting(name)) for name in "abc"), journalled(acting("x", "t2")))
    assert [one.action for one in granted(writes)] == ["a", "x"]

    assert [one.action for one in granted(driver.take(from_node(outcome("a"))))] == ["b"]
    assert [one.action for one in granted(driver.take(from_node(outcome("b"))))] == ["c"]


def test_an_answer_names_its_trajectory(driver: LeaderDriver) -> None:
    driver.take(journalled(acting("a")))

    (answer,) = answers(driver.take(from_node(outcome("a", usage={"cpu_s": 0.5}))))

    assert body(answer)["trajectory"] == "t1"
    assert msgspec.json.decode(answer.used) == {"cpu_s": 0.5}, "to be counted for the batch that the trajectory names"


def test_closing_ends_the_environment_and_removes_it_when_its_node_reports_the_end(driver: LeaderDriver) -> None:
    driver.take(journalled(acting("a")), journalled(acting("b")))
    driver.take(from_node(outcome("a")), from_node(outcome("b")))
    closing = close()

    writes = driver.take(closing)

    assert messages_to(writes) == [EnvironmentClosed(epoch=EPOCH, trajectory="t1")]
    assert discards(writes) == [closing.id]
    assert forgotten(writes) == [], "the node has not reported its end"
    gone = driver.take(from_node(ended(how="closed", reason="closed")))
    assert [(one.trajectory, one.ended) for one in forgotten(gone)] == [("t1", "closed")]


def test_closing_while_one_runs_and_one_waits_answers_both(driver: LeaderDriver) -> None:
    driver.take(journalled(acting("a")), journalled(acting("b")))

    writes = driver.take(close())
    assert ends(writes) == [("b", "cancelled")]
    assert [type(one).__name__ for one in messages_to(writes)] == ["Revoked", "EnvironmentClosed"]

    assert ends(driver.take(from_node(outcome("a", status="cancelled")))) == [("a", "cancelled")]


def test_closing_a_trajectory_without_environment_ends_it_at_once(driver: LeaderDriver) -> None:
    closing = close()

    writes = driver.take(closing)

    assert [one.trajectory for one in forgotten(writes)] == ["t1"]
    assert (messages_to(writes), discards(writes)) == ([], [closing.id])


def test_an_action_that_was_journalled_before_its_trajectory_closed_is_not_begun(driver: LeaderDriver) -> None:
    writes = driver.take(journalled(acting("a")), close(), journalled(acting("b")))

    assert [one.action for one in granted(writes)] in ([], ["a"])
    assert "b" in dict(ends(writes))


def test_an_environment_that_ended_by_itself_is_removed_and_later_actions_are_lost(driver: LeaderDriver) -> None:
    driver.take(journalled(acting("a")))

    writes = driver.take(from_node(outcome("a")), from_node(ended()), journalled(acting("b")))

    assert ends(writes) == [("a", "ok"), ("b", "environment-lost")]
    assert forgotten(writes) == [Forget("t1", "expired", "its time is over")]


def test_an_outcome_counts_before_the_end_that_follows_it(driver: LeaderDriver) -> None:
    driver.take(journalled(acting("a")))

    writes = driver.take(
        from_node(outcome("a", output=b'{"exit_code":0}')), from_node(ended(how="lost", reason="it died"))
    )

    (answer,) = answers(writes)
    assert (body(answer)["ended"], body(answer)["output"]) == ("ok", {"exit_code": 0})


def test_a_lost_environment_is_reported_and_masked(driver: LeaderDriver) -> None:
    driver.take(journalled(acting("a")))
    driver.take(from_node(outcome("a")), journalled(acting("b")))

    writes = driver.take(from_node(outcome("b", status="environment-lost", passed=None, reason="it was killed")))

    (answer,) = answers(writes)
    assert (body(answer)["ended"], body(answer)["mask"], body(answer).get("passed")) == ("environment-lost", True, None)


def test_a_failed_creation_lets_the_trajectory_begin_again(driver: LeaderDriver) -> None:
    driver.take(journalled(acting("a")))

    writes = driver.take(
        from_node(outcome("a", status="lost", passed=None, reason="no memory", environment_exists=False))
    )

    assert [(one.trajectory, one.ended) for one in forgotten(writes)] == [("t1", "unmade")]
    again = granted(writes)
    assert [(one.action, one.attempt, one.environment) for one in again] == [("a", 2, SPEC)]


def test_its_units_are_free_after_its_end() -> None:
    driver = LeaderDriver(memory_mb=600)
    driver.take(journalled(acting("a")), from_node(outcome("a")))

    assert granted(driver.take(journalled(acting("b", "t2")))) == [], "512 of 600 MB are held"
    assert [one.trajectory for one in granted(driver.take(from_node(ended())))] == ["t2"]


def test_an_environment_of_an_image_needs_a_node_with_that_runtime(driver: LeaderDriver) -> None:
    image = EnvironmentSpec(image="python:3.11")
    assert granted(driver.take(journalled(acting("a", spec=image)))) == []

    docker = msgspec.structs.replace(hello("m", memory_mb=4096), runtimes=["docker"])
    writes = driver.take(from_node(docker), from_node(inventory(node="m")))

    assert [one.action for one in granted(writes, "m")] == ["a"]


def test_an_unknown_environment_is_ended(driver: LeaderDriver) -> None:
    writes = driver.take(from_node(hello("m", memory_mb=4096)), from_node(inventory(node="m", environments=("t9",))))

    assert EnvironmentClosed(epoch=EPOCH, trajectory="t9") in messages_to(writes, "m")


def test_cancelling_one_action_leaves_its_trajectory_open(driver: LeaderDriver) -> None:
    driver.take(journalled(acting("a")), journalled(acting("b")))
    driver.take(journalled(CancelRequested(action="a")))

    writes = driver.take(from_node(outcome("a", status="cancelled", passed=None)))

    assert ends(writes) == [("a", "cancelled")]
    assert [one.action for one in granted(writes)] == ["b"]


@pytest.mark.parametrize(
    "wrong",
    [
        msgspec.structs.replace(acting("a"), environment=None),
        msgspec.structs.replace(acting("a"), trajectory=""),
        msgspec.structs.replace(acting("a"), stages=acting("a").stages * 2),
    ],
)
def test_an_entry_that_would_break_every_leader_is_refused(driver: LeaderDriver, wrong: Any) -> None:
    assert ends(driver.take(journalled(wrong))) == [("a", "refused")]


# ---- images --------------------------------------------------------------------------------------------------------


def expected(*images: str, node_class: str = "default", at: float = START) -> Any:
    message = EnvironmentsExpected(images=list(images), node_class=node_class, memory_mb=16)
    return entry(TRAJECTORIES, message, at=at)


@pytest.fixture
def docked(driver: LeaderDriver) -> LeaderDriver:
    """A leader with three more nodes that run images, one of another class."""
    for name, node_class in (("m", "default"), ("o", "default"), ("other", "big")):
        greeting = msgspec.structs.replace(hello(name, memory_mb=64), runtimes=["docker"], node_class=node_class)
        driver.take(from_node(greeting), from_node(inventory(node=name)))
    return driver


def pulls(writes: list[Any]) -> list[list[str]]:
    return [
        [one.image for one in messages_to(writes, node) if isinstance(one, ImageRequested)]
        for node in ("n", "m", "o", "other")
    ]


def test_one_node_of_the_class_pulls_the_image(docked: LeaderDriver) -> None:
    assert pulls(docked.take(expected("a:1", "b:2"))) == [[], ["a:1"], ["b:2"], []]
    assert pulls(docked.take(expected("a:1"), expected("docker.io/library/b:2"))) == [[]] * 4


def test_without_a_class_any_node_may_pull(docked: LeaderDriver) -> None:
    assert pulls(docked.take(expected("a:1", "b:1", "c:1", node_class=""))) == [[], ["a:1"], ["b:1"], ["c:1"]]


def test_a_node_that_has_the_image_is_known_by_its_inventory_and_its_reports(docked: LeaderDriver) -> None:
    changed = ImagesChanged(node="o", incarnation=inventory(node="o").incarnation, added=["a:1", "b:latest"])
    docked.take(from_node(changed))
    assert pulls(docked.take(expected("a:1", "b"))) == [[]] * 4
    docked.take(from_node(msgspec.structs.replace(changed, added=[], removed=["a:1"])))
    assert pulls(docked.take(expected("a:1"))) == [[], ["a:1"], [], []]


def test_an_old_hint_is_ignored(docked: LeaderDriver) -> None:
    assert pulls(docked.take(expected("a:1", at=START - 61.0))) == [[]] * 4


def test_the_first_action_goes_where_its_image_is(docked: LeaderDriver) -> None:
    incarnation = inventory(node="o").incarnation
    docked.take(from_node(ImagesChanged(node="o", incarnation=incarnation, added=["a:1"])))
    spec = EnvironmentSpec(image="docker.io/library/a:1", memory_mb=32)
    (write,) = docked.take(journalled(msgspec.structs.replace(acting("a"), environment=spec)))
    assert write.stream.startswith("grants.o.")


# ---- priorities ----------------------------------------------------------------------------------------------------


def test_a_change_of_priority_moves_what_waits_and_leaves_the_journal(driver: LeaderDriver) -> None:
    running = [journalled(acting(f"r{at}", f"t{at}")) for at in range(4)]
    assert len(granted(driver.take(*running, journalled(acting("a", "u")), journalled(acting("b", "v"))))) == 4

    change = journalled(PriorityRequested(trajectory="v", priority=-1.0))
    writes = driver.take(change)

    assert (granted(writes), discards(writes)) == ([], [change.id])
    assert [one.action for one in granted(driver.take(from_node(outcome("r0"))))] == ["b"]
    later = replace(journalled(acting("c", "w")), priority=-30.0)
    assert granted(driver.take(later)) == []
    assert [one.action for one in granted(driver.take(from_node(outcome("r1"))))] == ["c"], "by its entry"
