"""Concurrent starts of environments: bounded apart from cores, without starving other actions, in order."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from services.cpu_manager.kinds import STARTS
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import CreationReported, InventoryReported, PlacementRestored
from shared.policy.model.formulation import Command, EnvironmentNeed, Grant, Request
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.ledger import Node
from tests.shared.policy.dispatch.test_dispatch_trajectories import act, host, leading, submit
from tests.shared.policy.strategies import SPECS, joined, reported

MEMORY = "memory_mb"


def starting(name: str, trajectory: str, seq: int, memory: int = 1) -> Request:
    return replace(
        act(name, trajectory, seq=seq), need=EnvironmentNeed(trajectory, "runtime.local", {MEMORY: memory, STARTS: 1})
    )


def limited(cores: int = 4, starts: int = 1, memory: int = 1000) -> Node:
    node = host("a", cores, memory)
    return dataclasses.replace(node, capacity={**node.capacity, STARTS: starts})


def granted(commands: list[Command]) -> list[Grant]:
    return [one for one in commands if isinstance(one, Grant)]


def finish(leader: Dispatcher, grant: Grant, now: float) -> list[Grant]:
    found = leader.handle(
        now, reported(Ended(grant.action, grant.node, grant.attempt, 0, AttemptResult("ok", True), execution_s=0.1))
    )
    leader.check()
    return granted(found)


def test_actions_of_existing_environments_are_granted_at_once_while_many_wait_to_begin() -> None:
    leader = leading(limited(cores=2, starts=1))
    (first,) = granted(submit(leader, starting("first", "t", 0)))
    (begun,) = [*finish(leader, first, 1.0), *granted(submit(leader, starting("b0", "u0", 1), now=1.0))]
    assert submit(leader, *(starting(f"b{n}", f"u{n}", n + 1) for n in range(1, 500)), now=1.0) == []
    (runs,) = granted(submit(leader, starting("later", "t", 1000), now=2.0))
    assert (runs.action, runs.begins) == ("later", False), "an older beginning does not keep its core"
    (second,) = finish(leader, begun, 3.0)
    assert (second.action, second.begins) == ("b1", True)


def test_an_action_that_begins_gets_its_core_in_turn_although_others_keep_running() -> None:
    """While no start is free nothing is reserved for it; while no core is free its turn comes by age."""
    leader = leading(limited(cores=1, starts=1))
    (first,) = granted(submit(leader, starting("first", "t", 0)))
    assert finish(leader, first, 1.0) == []
    (runs,) = granted(submit(leader, starting("r1", "t", 1), now=1.0))
    assert submit(leader, starting("begins", "u", 2), starting("r2", "t", 3), now=1.1) == []
    (begins,) = finish(leader, runs, 2.0)
    assert begins.action == "begins"


def test_the_next_begins_as_soon_as_one_exists_although_its_first_action_still_runs() -> None:
    leader = leading(limited(cores=3, starts=1))
    (first,) = granted(submit(leader, starting("a1", "t", 0), starting("a2", "u", 1)))
    assert leader.handle(1.0, CreationReported("a", "another life", "t")) == []
    assert leader.handle(1.0, CreationReported("a", "1", "unknown")) == []
    (second,) = granted(leader.handle(1.0, CreationReported("a", "1", "t")))
    leader.check()
    assert (first.action, second.action) == ("a1", "a2")
    assert leader.handle(1.0, CreationReported("a", "1", "t")) == [], "reported twice, counted once"
    assert finish(leader, first, 2.0) == []
    assert leader.cluster.nodes.present["a"].free(STARTS) == 0
    finish(leader, second, 3.0)
    assert leader.cluster.nodes.present["a"].free(STARTS) == 1


def test_an_action_that_waits_to_begin_has_a_reason() -> None:
    leader = leading(limited(cores=4, starts=1, memory=3))
    (first,) = granted(submit(leader, *(starting(f"a{n}", f"t{n}", n, memory=2) for n in range(3))))

    def why() -> str:
        wait, text = leader.waiting_reasons().actions["a2", 0]
        assert wait == "held up"
        return text

    assert why() == (
        "it waits to begin its environment, with 2 in cores@cpu: "
        "the memory for environments is taken and the limit of concurrent environment starts is reached"
    )
    finish(leader, first, 1.0)
    assert why() == "it waits to begin its environment, with 2 in cores@cpu: the memory for environments is taken"


def test_a_new_leader_counts_starts_by_the_nodes_inventory() -> None:
    leader = Dispatcher(specs=SPECS)
    leader.handle(0.0, PlacementRestored("t", "a", {MEMORY: 1}))
    leader.handle(0.0, joined(limited(starts=1)))
    leader.handle(0.0, InventoryReported("a", "1", {}, {"t": {MEMORY: 1, STARTS: 1}}))
    leader.check()
    assert submit(leader, starting("a2", "u", 1)) == []
    assert [one.action for one in granted(leader.handle(1.0, CreationReported("a", "1", "t")))] == ["a2"]


@given(st.lists(st.sampled_from(["begin", "run", "made", "finish", "unmade"]), max_size=60), st.integers(1, 3))
def test_concurrent_starts_are_bounded_and_none_is_lost(steps: list[str], starts: int) -> None:
    leader = leading(limited(cores=4, starts=starts))
    running: list[Grant] = []
    making: list[str] = []
    trajectories: list[str] = []
    for number, what in enumerate(steps):
        now, found = float(number), list[Command]()
        if what == "begin":
            trajectories.append(f"t{number}")
            found = submit(leader, starting(f"b{number}", f"t{number}", number), now=now)
        elif what == "run" and trajectories:
            found = submit(leader, starting(f"r{number}", trajectories[-1], number), now=now)
        elif what == "made" and making:
            found = leader.handle(now, CreationReported("a", "1", making.pop(0)))
        elif what in ("finish", "unmade") and running:
            grant = running.pop(0)
            trajectory = _trajectory(leader, grant)
            fails = what == "unmade" and trajectory in making
            if trajectory in making:
                making.remove(trajectory)
            result = AttemptResult("refused" if fails else "ok", True, environment_exists=not fails)
            found = leader.handle(now, reported(Ended(grant.action, "a", grant.attempt, 0, result)))
        leader.check()
        for grant in granted(found):
            running.append(grant)
            if grant.begins:
                making.append(_trajectory(leader, grant))
        assert len(making) <= starts
        assert leader.cluster.nodes.present["a"].used.get(STARTS, 0) == len(making)


def _trajectory(leader: Dispatcher, grant: Grant) -> str:
    need = leader.registry.actions[grant.action].request.need
    assert need is not None
    return need.trajectory
