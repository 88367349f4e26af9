"""Images on nodes: environments go to the node with their image, pulls to the predicted node."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.placement import place_environment, place_pull
from shared.policy.dispatch.stimuli import (
    ImagesExpected,
    ImagesReported,
    NodeSeen,
    TickPassed,
    TrajectoryClosed,
)
from shared.policy.model.formulation import AnswerAction, EnvironmentNeed, ForgetTrajectory, Grant, PullImage
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.ledger import Node
from shared.policy.resources.residency import ABSENT, EXPECTED, EXPECTED_S, MOST_EXPECTED, PRESENT, Residency
from tests.shared.policy.dispatch.test_dispatch_trajectories import act, end, grants, host, leading, meet, submit
from tests.shared.policy.strategies import reported, request, work

MEMORY = "memory_mb"
DOCKER = "runtime.docker"


def engine(name: str, *images: str, cores: int = 4, memory: int = 100, used: int = 0) -> Node:
    node = host(name, cores, memory)
    node.kinds |= {DOCKER}
    node.images.changed(images, ())
    node.take({MEMORY: used}, "another")
    node.ready = True
    return node


def beginning(image: str, memory: int = 10, cores: int = 1) -> ActionState:
    one = request("a", work(units={"cores": cores}, kind="act"))
    action = ActionState(replace(one, need=EnvironmentNeed("t", DOCKER, {MEMORY: memory}, image)))
    action.begins = True
    return action


def expect(leader: Dispatcher, *images: str, now: float = 0.0, memory: int = 10) -> list[tuple[str, str]]:
    commands = leader.handle(now, ImagesExpected(tuple(images), "cpu", DOCKER, {MEMORY: memory}))
    return [(one.node, one.image) for one in commands if isinstance(one, PullImage)]


# ---- placement -----------------------------------------------------------------------------------------------------


def test_a_node_that_has_the_image_goes_before_one_with_more_memory() -> None:
    nodes = [engine("a"), engine("b", "python:3", used=80)]
    chosen = place_environment(nodes, beginning("python:3"), "cores", 0.0)
    assert chosen is nodes[1]


def test_an_image_does_not_help_if_the_memory_is_taken() -> None:
    nodes = [engine("a"), engine("b", "python:3", used=95)]
    assert place_environment(nodes, beginning("python:3"), "cores", 0.0) is nodes[0]


node_states = st.lists(
    st.tuples(
        st.sampled_from([PRESENT, EXPECTED, ABSENT]),
        st.integers(0, 100),
        st.integers(0, 4),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


def nodes_of(states: list[tuple[int, int, int, bool]]) -> list[Node]:
    nodes = []
    for number, (rank, used, busy, ready) in enumerate(states):
        node = engine(f"n{number}", *(["i:1"] if rank == PRESENT else []), used=used)
        node.take({"cores": busy}, "another")
        node.ready = ready
        if rank == EXPECTED:
            node.images.expect("i:1", {}, 0.0)
        nodes.append(node)
    return nodes


@given(node_states, st.integers(1, 100), st.integers(1, 4))
def test_among_nodes_that_fit_the_image_decides_then_memory_then_cores(
    states: list[tuple[int, int, int, bool]], memory: int, cores: int
) -> None:
    """Oracle: sort all that fit."""
    nodes = nodes_of(states)
    fitting = [
        (rank, used + memory, busy, number)
        for number, (rank, used, busy, ready) in enumerate(states)
        if ready and used + memory <= 100 and busy + cores <= 4
    ]
    chosen = place_environment(nodes, beginning("i:1", memory, cores), "cores", 0.0)
    assert (chosen.name if chosen else None) == (f"n{min(fitting)[3]}" if fitting else None)


@given(node_states, st.integers(1, 100))
def test_one_node_pulls_at_most_and_it_is_the_one_where_an_empty_mesh_would_place_it(
    states: list[tuple[int, int, int, bool]], memory: int
) -> None:
    """Oracle: `place_environment` where every core is free."""
    nodes = nodes_of(states)
    for node in nodes:
        node.give_back({"cores": node.taken("cores")}, "another")
    placement = place_environment(nodes, beginning("i:1", memory), "cores", 0.0)
    has = [node.images.rank("i:1", 0.0) for node in nodes]
    pulls = place_pull(nodes, "i:1", DOCKER, {MEMORY: memory}, 0.0)
    wanted = placement if placement is not None and has[nodes.index(placement)] == ABSENT else None
    assert pulls is wanted
    assert place_pull(nodes, "i:1", DOCKER, {MEMORY: 0}, 0.0) is None or pulls is None


# ---- expected images -----------------------------------------------------------------------------------------------


def test_of_two_equal_nodes_one_pulls_and_the_group_follows_it() -> None:
    leader = leading(engine("a"), engine("b"))
    assert expect(leader, "i:1") == [("a", "i:1")]
    assert [expect(leader, "i:1") for _ in range(8)] == [[]] * 8, "the others of its group find it there"


def test_images_spread_over_nodes_as_their_environments_will() -> None:
    leader = leading(engine("a"), engine("b"))
    pulls = [node for n in range(10) for node, _ in expect(leader, f"i:{n}")]
    assert (pulls.count("a"), pulls.count("b")) == (5, 5)


def test_a_group_that_outgrows_its_node_causes_a_pull_elsewhere() -> None:
    leader = leading(engine("a"), engine("b"))
    pulls = [pull for _ in range(21) for pull in expect(leader, "i:1")]
    assert pulls == [("a", "i:1"), ("b", "i:1")], "ten environments fit on each, and no node pulls for the last"


def test_a_node_with_the_image_does_not_pull_and_one_that_lost_it_does() -> None:
    leader = leading(engine("a"), engine("b"))
    leader.handle(0.0, ImagesReported("a", "1", ("i:1",)))
    assert expect(leader, "i:1") == []
    leader.handle(0.0, ImagesReported("a", "another life", (), ("i:1",)))
    assert expect(leader, "i:1") == []
    leader.handle(0.0, ImagesReported("a", "1", (), ("i:1",)))
    assert expect(leader, "i:1") == [("a", "i:1")]
    assert leader.cluster.nodes.present["a"].images.rank("i:1", 0.0) != PRESENT


def test_an_unused_expectation_expires() -> None:
    leader = leading(engine("a"))
    assert expect(leader, "i:1") == [("a", "i:1")]
    assert expect(leader, "i:1", now=EXPECTED_S - 1) == []
    assert expect(leader, "i:1", now=2 * EXPECTED_S) == [("a", "i:1")]


def test_nodes_without_an_engine_or_of_another_class_do_not_pull() -> None:
    leader = leading(host("a"), dataclasses.replace(engine("b"), node_class="gpu"))
    assert expect(leader, "i:1") == []
    commands = leader.handle(0.0, ImagesExpected(("i:1",), "", DOCKER, {MEMORY: 10}))
    assert commands == [PullImage("b", "i:1")]


def test_expectations_are_bounded_and_end_with_the_beginning() -> None:
    images = Residency()
    for n in range(MOST_EXPECTED + 10):
        images.expect(f"i:{n}", {MEMORY: 1}, 0.0)
    assert len(images.expected) == MOST_EXPECTED
    images.environment_begun("i:100", {MEMORY: 1}, 0.0)
    assert images.expected_units(MEMORY, 0.0) == MOST_EXPECTED - 1
    images.changed(["i:100"], [])
    assert images.rank("i:100", 2 * EXPECTED_S) == PRESENT


def test_an_environment_that_began_without_a_hint_draws_its_group_to_its_node() -> None:
    leader = leading(engine("a"), engine("b", used=0))
    first, second = (
        replace(act(name, name), need=EnvironmentNeed(name, DOCKER, {MEMORY: 10}, "i:1")) for name in ("one", "two")
    )
    (grant,) = submit(leader, first)
    assert grants(submit(leader, replace(second, arrival=(0, 1)))) == [("two", grant.node, True)]  # type: ignore[union-attr]


def test_a_node_that_could_not_create_one_ranks_last_for_a_while() -> None:
    leader = leading(engine("a", memory=200), engine("b"))
    one = replace(act("one", "one"), need=EnvironmentNeed("one", DOCKER, {MEMORY: 10}, "i:1"))
    (grant,) = submit(leader, one)
    assert isinstance(grant, Grant)
    assert grant.node == "a"
    again = [command for command in end(leader, grant, "lost", stands=False) if isinstance(command, Grant)]
    assert [one.node for one in again] == ["b"]
    assert leader.cluster.nodes.present["a"].images.rank("i:1", 100.0) == ABSENT


# ---- postponed -----------------------------------------------------------------------------------------------------


def postponed(leader: Dispatcher, grant: Grant, now: float, in_s: float) -> list[object]:
    pulls = Ended(
        grant.action,
        grant.node,
        grant.attempt,
        0,
        AttemptResult("postponed", reason="r", environment_exists=False, retry_in_s=in_s),
    )
    commands = leader.handle(now, reported(pulls))
    leader.check()
    return list(commands)


def test_a_postponed_environment_waits_with_a_reason_and_counts_no_attempt() -> None:
    leader = leading(host("a", cores=1))
    (grant,) = submit(leader, act("x"))
    for attempt in range(1, 8):
        assert isinstance(grant, Grant)
        assert grant.attempt == attempt
        now = attempt * 100.0
        leader.handle(now, NodeSeen("a", "1"))
        assert postponed(leader, grant, now, 50.0) == [ForgetTrajectory("t", "unmade", "r")]
        assert grants(submit(leader, act(f"other{attempt}", f"u{attempt}", seq=attempt), now=now)) != [], (
            "it holds nothing while it waits"
        )
        end(leader, Grant(f"other{attempt}", "a", 1, 0, {"cores": 1}, 0.0), now=now)
        leader.handle(now + 49.0, NodeSeen("a", "1"))
        assert leader.handle(now + 49.0, TickPassed()) == []
        leader.handle(now + 50.0, NodeSeen("a", "1"))
        (grant,) = leader.handle(now + 50.0, TickPassed())
        leader.check()


def test_one_whose_deadline_comes_meanwhile_expires_with_the_reason() -> None:
    leader = leading(host("a"))
    (grant,) = submit(leader, replace(act("x"), deadline_s=30.0))
    assert isinstance(grant, Grant)
    postponed(leader, grant, 1.0, 500.0)
    leader.handle(29.0, NodeSeen("a", "1"))
    (answer,) = leader.handle(31.0, TickPassed())
    assert isinstance(answer, AnswerAction)
    assert (answer.ended, answer.reason) == (
        "expired",
        "its deadline came while its environment could not be made: r",
    )
    leader.check()


def test_a_postponed_action_that_is_closed_meanwhile_is_answered_at_once() -> None:
    leader = leading(host("a"))
    (grant,) = submit(leader, act("x"))
    assert isinstance(grant, Grant)
    postponed(leader, grant, 1.0, 500.0)
    commands = leader.handle(2.0, TrajectoryClosed("t"))
    assert [one.ended for one in commands if isinstance(one, AnswerAction)] == ["cancelled"]
    leader.check()


def test_a_joining_node_does_not_shorten_a_postponement() -> None:
    leader = leading(host("a"))
    (grant,) = submit(leader, act("x"))
    assert isinstance(grant, Grant)
    postponed(leader, grant, 1.0, 500.0)
    meet(leader, host("b"), now=2.0)
    leader.check()
    assert leader.cluster.granted.get("b", {}) == {}


def test_one_that_waits_for_its_image_is_granted_as_soon_as_a_node_has_it() -> None:
    leader = leading(engine("a"))
    (grant,) = submit(leader, replace(act("x"), need=EnvironmentNeed("t", DOCKER, {MEMORY: 10}, "i:1")))
    assert isinstance(grant, Grant)
    postponed(leader, grant, 1.0, 500.0)
    assert leader.handle(2.0, ImagesReported("a", "1", ("other:1",), ())) == []
    (again,) = leader.handle(3.0, ImagesReported("a", "1", ("i:1",), ()))
    leader.check()
    assert isinstance(again, Grant)
    assert (again.action, again.begins) == ("x", True)
