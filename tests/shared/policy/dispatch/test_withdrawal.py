"""Withdrawn actions: the dispatcher is as if they had never come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.local_stimuli import ActionWithdrawn
from shared.policy.dispatch.service_stimuli import ServicesReported
from shared.policy.dispatch.stimuli import (
    ActionCancelled,
    InventoryReported,
    NodeJoined,
    NodeLost,
    RequestsSubmitted,
)
from shared.policy.model.chunks import Chunk, ServedModel
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import Grant, Revoke, Work
from shared.policy.resources.chunks import GPUS, Chunks
from tests.shared.policy.strategies import request, work

CHUNK = Chunk(0, 1)


def mesh(cores: int = 2) -> Dispatcher:
    dispatcher = Dispatcher()
    dispatcher.handle(0.0, NodeJoined("n", "1", "cpu", {"cores": cores}, frozenset({"run"})))
    dispatcher.handle(0.0, InventoryReported("n", "1", {}))
    return dispatcher


def used(dispatcher: Dispatcher) -> int:
    node = dispatcher.node("n")
    assert node is not None
    return node.used["cores"]


def submit(dispatcher: Dispatcher, name: str, one: Work | None = None) -> list[object]:
    return list(dispatcher.handle(1.0, RequestsSubmitted((request(name, one or work("cores@cpu", {"cores": 1})),))))


def test_a_granted_action_is_removed_without_a_command() -> None:
    dispatcher = mesh()
    (grant,) = submit(dispatcher, "a")
    assert isinstance(grant, Grant)
    assert dispatcher.handle(2.0, ActionWithdrawn("a")) == []
    assert (dispatcher.unanswered, used(dispatcher), dispatcher.queued_in("cores@cpu")) == (0, 0, 0)
    dispatcher.check()


def test_its_units_are_granted_to_what_waits() -> None:
    dispatcher = mesh(cores=1)
    submit(dispatcher, "a")
    assert submit(dispatcher, "b") == []
    (grant,) = dispatcher.handle(2.0, ActionWithdrawn("a"))
    assert isinstance(grant, Grant)
    assert grant.action == "b"
    dispatcher.check()


def test_a_queued_action_is_removed_without_a_command() -> None:
    dispatcher = mesh(cores=1)
    submit(dispatcher, "a")
    submit(dispatcher, "b")
    assert dispatcher.queued_in("cores@cpu") == 1
    assert dispatcher.handle(2.0, ActionWithdrawn("b")) == []
    assert (dispatcher.unanswered, dispatcher.queued_in("cores@cpu")) == (1, 0)
    dispatcher.check()


def test_an_action_that_is_being_cancelled_is_removed() -> None:
    dispatcher = mesh()
    submit(dispatcher, "a")
    assert dispatcher.handle(2.0, ActionCancelled("a", "why")) == [Revoke("a", "n", 1)]
    assert dispatcher.handle(3.0, ActionWithdrawn("a")) == []
    assert (dispatcher.unanswered, used(dispatcher)) == (0, 0)
    dispatcher.check()


def test_an_action_whose_node_is_lost_is_removed() -> None:
    dispatcher = mesh()
    submit(dispatcher, "a")
    dispatcher.handle(2.0, NodeLost("n", "gone"))
    assert dispatcher.handle(3.0, ActionWithdrawn("a")) == []
    assert dispatcher.unanswered == 0
    dispatcher.check()


def test_an_unknown_action_changes_nothing() -> None:
    dispatcher = mesh()
    assert dispatcher.handle(2.0, ActionWithdrawn("a")) == []


# ---- model services --------------------------------------------------------------------------------------------------


def gpus(concurrency: int = 1) -> tuple[Dispatcher, Chunks]:
    """A GPU that holds service Y."""
    dispatcher = Dispatcher(specs={"gpus": GPUS})
    dispatcher.handle(0.0, NodeJoined("n", "1", "gpu", {"gpus": 1}, frozenset({"run"})))
    served = {
        "X": ServedModel((1,), concurrency, 60.0),
        "Y": ServedModel((1,), concurrency, 60.0, frozenset({CHUNK})),
    }
    dispatcher.handle(0.0, ServicesReported("n", "1", "gpus", served, (80.0,)), InventoryReported("n", "1", {}))
    chunks = dispatcher.cluster.nodes.present["n"].resources["gpus"]
    assert isinstance(chunks, Chunks)
    return dispatcher, chunks


def calls(service: str) -> Work:
    return replace(work("gpus@gpu", {"gpus": 1}), service=service)


def residency(chunks: Chunks) -> tuple[bool, bool, float]:
    models = chunks.models
    return models.holds(CHUNK, "X"), models.holds(CHUNK, "Y"), models.last_used_s(CHUNK)


def test_a_service_that_a_grant_evicted_is_resident_again() -> None:
    dispatcher, chunks = gpus()
    before = residency(chunks)
    submit(dispatcher, "a", calls("X"))
    assert residency(chunks) != before
    dispatcher.handle(2.0, ActionWithdrawn("a"))
    assert (residency(chunks), chunks.free) == (before, 1)
    dispatcher.check()


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_service_that_another_action_still_uses_stays(first: str) -> None:
    dispatcher, chunks = gpus(concurrency=2)
    for name in ("a", "b"):
        submit(dispatcher, name, calls("X"))
    assert chunks.free == 0
    dispatcher.handle(2.0, ActionWithdrawn(first))
    assert residency(chunks)[:2] == (True, False)
    assert chunks.free == 0
    dispatcher.check()


def test_actions_that_shared_an_engine_are_undone_together() -> None:
    dispatcher, chunks = gpus(concurrency=2)
    before = residency(chunks)
    for name in ("a", "b"):
        submit(dispatcher, name, calls("X"))
    dispatcher.handle(2.0, ActionWithdrawn("b"), ActionWithdrawn("a"))
    assert (residency(chunks), chunks.free) == (before, 1)
    dispatcher.check()


# ---- all sorts of work -----------------------------------------------------------------------------------------------

SORTS = (
    work("cores@cpu", {"cores": 1}),
    work("cores@cpu", {"cores": 3}),
    work("cores@cpu", {"cores": 1, "slots": 1}),
    replace(
        work("cores@cpu", {"cores": 1}), amounts=(1, 2, 4), elasticity=Elasticity("amdahl", serial=0.1), duration_s=4.0
    ),
)


@given(st.lists(st.tuples(st.sampled_from(SORTS), st.booleans()), min_size=1, max_size=8), st.booleans())
def test_what_is_withdrawn_at_once_leaves_the_dispatcher_as_it_was(
    drawn: list[tuple[Work, bool]], prefetches: bool
) -> None:
    dispatcher = Dispatcher()
    capacity = {"cores": 4, "slots": 1}
    kinds = frozenset({"run"})
    dispatcher.handle(
        0.0, NodeJoined("n", "1", "cpu", capacity, kinds, prefetches=frozenset({"cores"} if prefetches else ()))
    )
    dispatcher.handle(0.0, InventoryReported("n", "1", {}))
    kept = {f"k{number}" for number, (_, stays) in enumerate(drawn) if stays}
    for number, (one, stays) in enumerate(drawn):
        submit(dispatcher, f"k{number}" if stays else f"w{number}", one)
    gone = [f"w{number}" for number, (_, stays) in enumerate(drawn) if not stays]
    dispatcher.handle(1.0, *(ActionWithdrawn(name) for name in reversed(gone)))
    dispatcher.check()
    assert {name for name in (*kept, *gone) if dispatcher.action(name) is not None} == kept
    if not kept:
        node = dispatcher.node("n")
        assert node is not None
        assert not any(node.used.values())
        assert dispatcher.queued_in("cores@cpu") == 0
