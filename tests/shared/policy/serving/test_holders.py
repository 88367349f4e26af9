"""Holders: admission, refusal, deadlines (law 1)."""

from __future__ import annotations

from math import inf

import pytest

from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import Admit, EngineMemory, HolderEnded, InstanceId, LoadEngine, RunCanary, Wanted
from tests.shared.policy.serving.node_driver import Driver, on, refusal, service


def test_a_holder_is_admitted_after_load_and_canary() -> None:
    node = Driver(service("a"))
    assert node.want("h", on("a")) == [LoadEngine(on("a"))]
    assert node.step(on("a")) == [RunCanary(on("a"))]
    assert node.step(on("a")) == [Admit("h", on("a"))]
    assert node.view(on("a")).state == "running"


def test_holders_are_admitted_in_their_order_up_to_the_concurrency() -> None:
    node = Driver(service("a", concurrency=2))
    node.resident(on("a"))
    assert [node.want(holder, on("a")) for holder in ("h1", "h2", "h3", "h4")] == [
        [Admit("h1", on("a"))],
        [Admit("h2", on("a"))],
        [],
        [],
    ]
    assert node.end("h2") == [Admit("h3", on("a"))]
    assert node.end("h1") == [Admit("h4", on("a"))]


def test_a_repeated_holder_changes_nothing() -> None:
    node = Driver(service("a"))
    node.want("h", on("a"))
    assert node.handle(Wanted("h", on("a"), inf)) == []
    node.step(on("a"))
    node.step(on("a"))
    assert node.handle(Wanted("h", on("a"), inf)) == []
    assert node.end("h") == []
    assert node.handle(HolderEnded("h")) == []


def test_a_holder_that_gives_up_is_not_admitted() -> None:
    node = Driver(service("a"))
    node.want("h", on("a"))
    node.end("h")
    node.step(on("a"))
    assert node.step(on("a")) == []
    assert node.view(on("a")).state == "resident"


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (on("x"), "declare it with PUT /v1/services/x"),
        (on("a", 0, 4), "no aligned chunk"),
        (on("a", 1, 2), "no aligned chunk"),
        (on("a", 2), "no aligned chunk"),
        (on("a", -1), "no aligned chunk"),
        (on("b", 0, 2), "has the degrees 1, and not 2"),
        (on("big"), "needs 20 GB on each GPU"),
        (on("split", 0, 2), "needs 17 GB on each GPU"),
    ],
)
def test_a_holder_that_can_never_be_admitted_is_refused_at_once(one: InstanceId, why: str) -> None:
    node = Driver(service("a"), service("b", degrees=(1,)), service("big", 20.0))
    node.set(service("split", 9.0, memory_by={2: EngineMemory(17.0, {}, {})}))
    refused = refusal(node.want("h", one))
    assert why in refused.reason
    assert refused.retry_in_s is None
    assert node.serving.view() == []


def test_a_waiting_holder_is_refused_at_its_deadline_with_the_rest_of_a_measured_load() -> None:
    node = Driver(service("a"))
    node.resident(on("a"))
    node.die(on("a"))
    node.step(on("a"))
    node.want("h", on("a"), 7.0)
    assert node.serving.next_wake_s() == 7.0
    refused = refusal(node.wake())
    assert "deadline came while a on GPU 0 was loading" in refused.reason
    assert refused.retry_in_s == pytest.approx(53.0)


def test_a_load_that_is_not_begun_is_expected_after_the_evictions_before_it() -> None:
    node = Driver(service("a"), service("b"))
    node.resident(on("a"))
    node.resident(on("b"), evictions=1)  # the eviction of a took 1 s, the load of b 60 s
    node.want("h", on("a"))
    assert node.serving.view()[1].step == "evict"
    restore_s = node.config.restore_s["asleep2"]
    assert node.serving.ready_in_s(node.now, on("a")) == pytest.approx(node.config.evict_s["asleep2"] + restore_s)


def test_a_restore_that_takes_longer_than_expected_is_expected_soon() -> None:
    node = Driver(service("a"))
    node.want("h", on("a"), 90.0)
    node.after(80.0)
    assert node.serving.ready_in_s(node.now, on("a")) == node.config.retry_s


def test_a_holder_whose_deadline_has_passed_is_refused() -> None:
    node = Driver(service("a"))
    node.resident(on("a"))
    refused = refusal(node.want("h", on("a"), 0.0))
    assert refused.retry_in_s is not None, "its deadline is no reason to refuse the work"
    assert node.serving.ready_in_s(node.now, on("a")) == 0.0, "it is resident"


def test_waiting_holders_of_a_node_are_bounded() -> None:
    node = Driver(service("a"), config=ServingConfig(most_waiting=2))
    node.want("h1", on("a"))
    node.want("h2", on("a", 1))
    refused = refusal(node.want("h3", on("a")))
    assert refused.retry_in_s is not None
    node.end("h1")
    assert node.want("h4", on("a")) == []


def test_another_service_on_the_gpu_waits_until_the_holders_have_ended() -> None:
    node = Driver(service("a", 7.0), service("b", 7.0))
    node.resident(on("b"))
    node.resident(on("a"))
    assert node.want("h1", on("a")) == [Admit("h1", on("a"))]
    assert node.want("h2", on("b")) == []
    assert node.want("h3", on("b", 0, 2)) == []
    assert node.end("h1") == [Admit("h2", on("b"))]
