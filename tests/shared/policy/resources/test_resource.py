"""The protocol of resources, and the dispatcher on a resource with structure."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import AttemptsEnded, InventoryReported, NodeJoined, RequestsSubmitted, TickPassed
from shared.policy.elastic.scheduling import allot
from shared.policy.model.chunks import SIZES
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import Grant
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.chunks import GPUS, Chunks
from shared.policy.resources.ledger import Node
from shared.policy.resources.resource import PlainUnits, ResourceSpec, lasting
from tests.shared.policy.elastic.elastic_oracle import modelled
from tests.shared.policy.strategies import request, work


@given(st.lists(modelled(), min_size=1, max_size=3), st.integers(0, 3))
@settings(deadline=None)
def test_units_in_one_line_are_decided_as_plain_counts(actions: list, spare: int) -> None:  # type: ignore[type-arg]
    """The same decision with and without the compiled loops."""

    class Row:
        def __init__(self, units: int) -> None:
            self.units, self.states = units, units + 1

        def left(self, state: int, units: int) -> int | None:
            return state - units if units <= state else None

    free = sum(one.amounts[0] for one in actions) + spare
    counted = allot(actions, free, [], [3.0], evictable=2, rule="paper")
    structured = allot(actions, Row(free), [], [3.0], evictable=2, rule="paper")
    assert len(counted) == len(structured)

    def cost(granted: tuple[int, ...]) -> float:
        pairs = zip(actions, granted, strict=False)
        return sum(float(one.durations_s[one.amounts.index(units)]) for one, units in pairs)

    assert abs(cost(counted) - cost(structured)) < 1e-6


AMOUNTS = replace(
    work("gpus@cpu", {"gpus": 1}), amounts=SIZES, elasticity=Elasticity("power", exponent=0.9), duration_s=8.0
)


@given(st.lists(st.sampled_from(["one", "two", "elastic", "elastic", "end"]), max_size=40))
@settings(deadline=None)
def test_the_dispatcher_grants_chunks_that_never_overlap(steps: list[str]) -> None:
    dispatcher = Dispatcher(specs={"gpus": GPUS})
    for name in "ab":
        dispatcher.handle(0.0, NodeJoined(name, "1", "cpu", {"gpus": 8}, frozenset({"run"})))
        dispatcher.handle(0.0, InventoryReported(name, "1", {}))
    running: list[Grant] = []
    for number, step in enumerate(steps):
        now = float(number)
        if step == "end" and running:
            grant = running.pop(0)
            ended = Ended(grant.action, grant.node, grant.attempt, 0, AttemptResult("ok", True))
            commands = dispatcher.handle(now, AttemptsEnded((ended,)))
        elif step != "end":
            stage = AMOUNTS if step == "elastic" else work("gpus@cpu", {"gpus": 1 if step == "one" else 2})
            new = request(f"r{number}", stage, at_s=now)
            commands = dispatcher.handle(now, RequestsSubmitted((new,)))
        else:
            commands = []
        # Eviction for a larger amount may leave a unit that no chunk can use: the evicted action has it at the next
        # tick, at most 0.2 s later.
        commands = [*commands, *dispatcher.handle(now, TickPassed())]
        running += [one for one in commands if isinstance(one, Grant)]
        dispatcher.check()
        for node in dispatcher.cluster.nodes.present.values():
            chunks = node.resources["gpus"]
            assert isinstance(chunks, Chunks)
            here = [one for one in running if one.node == node.name]
            assert all(one.numbers == chunks.numbers(one.action) for one in here)
            assert all(len(one.numbers) == one.units["gpus"] for one in here)
            taken = [gpu for one in here for gpu in one.numbers]
            assert len(taken) == len(set(taken)) == chunks.used
            assert not chunks.sharing
        head = dispatcher.cluster.queues.queued.get(dispatcher.cluster.queues.pool("gpus@cpu").queue.head() or "")
        nodes = dispatcher.cluster.nodes.present.values()
        assert head is None or head.scales or not any(node.has_free(head.work.units) for node in nodes), (
            "units are free"
        )


def test_nodes_are_chosen_by_the_rank_of_the_resource() -> None:
    dispatcher = Dispatcher(specs={"gpus": GPUS})
    for name in "ab":
        dispatcher.handle(0.0, NodeJoined(name, "1", "cpu", {"gpus": 8}, frozenset({"run"})))
        dispatcher.handle(0.0, InventoryReported(name, "1", {}))
    granted: list[Grant] = []
    for number, units in enumerate((4, 2, 8)):
        stage = work("gpus@cpu", {"gpus": units})
        commands = dispatcher.handle(0.0, RequestsSubmitted((request(f"r{number}", stage),)))
        granted += [one for one in commands if isinstance(one, Grant)]
    places = [(one.node, one.numbers) for one in granted]
    assert places == [("a", (0, 1, 2, 3)), ("a", (4, 5)), ("b", tuple(range(8)))], "the block of eight stays whole"


def test_what_a_node_reports_is_held_although_it_does_not_fit() -> None:
    node = Node("n", "1", "cpu", {"gpus": 2}, frozenset(), {"gpus": GPUS})
    node.take({"gpus": 2, "unknown": 1}, "a")
    node.take({"gpus": 2}, "b")
    assert node.used == {"gpus": 4, "unknown": 1}
    assert not node.has_free({"gpus": 1})
    node.give_back({"gpus": 2}, "b")
    node.give_back({"gpus": 2, "unknown": 1}, "a")
    assert node.has_free({"gpus": 2})


def test_an_environment_holds_to_its_end_what_is_not_only_for_its_creation() -> None:
    specs = {"turns": ResourceSpec("creation"), "memory": ResourceSpec("environment")}
    assert lasting(specs, {"turns": 1, "memory": 5, "disk": 2}) == {"memory": 5, "disk": 2}


def test_plain_units_that_are_owned_limit_what_is_free() -> None:
    units = PlainUnits(8)
    units.take(3)
    units.share = 5
    assert (units.free, units.fits(2), units.fits(3), units.could_ever(8)) == (2, True, False, True)
    units.share = 2
    assert units.free == 0
    assert units.states({"r": 1}).units == 1
