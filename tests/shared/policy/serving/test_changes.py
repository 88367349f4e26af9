"""Services that change or go, and bad GPUs (laws 7 and 8)."""

from __future__ import annotations

from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import Abort, Admit, EngineMemory, LoadEngine, RefuseHolder, Stop
from tests.shared.policy.serving.node_driver import Driver, on, refusal, service


def test_a_removed_service_is_drained_and_stopped_and_nothing_of_it_stays() -> None:
    node = Driver(service("a"))
    node.resident(on("a"))
    node.want("h1", on("a"))
    node.want("h2", on("a"))
    assert node.remove("a") == [RefuseHolder("h2", "the service 'a' was removed", None)]
    assert node.view(on("a")).state == "draining"
    assert node.end("h1") == [Stop(on("a"))]
    assert node.step(on("a")) == []
    assert node.serving.view() == []
    state = node.serving._state
    left = [state.instances, state.holders, state.times._means, state.sleepers, state.timers._times, *state.gpus]
    left += [state.moving, state.agenda, *state.resting.gpus]
    assert not any(left)


def test_a_removed_service_whose_holders_do_not_end_is_aborted() -> None:
    node = Driver(service("a"))
    node.resident(on("a"))
    node.want("h", on("a"))
    node.remove("a")
    assert node.wake() == [Abort(on("a"))]
    assert node.end("h") == [Stop(on("a"))]


def test_a_changed_service_is_drained_and_its_waiting_holders_get_the_new_engine() -> None:
    node = Driver(service("a"))
    node.resident(on("a"))
    node.want("h1", on("a"))
    node.set(service("a", revision="2"))
    assert node.want("h2", on("a")) == []
    assert node.end("h1") == [Stop(on("a"))]
    assert node.step(on("a")) == [LoadEngine(on("a"))]
    assert node.node.engines[on("a")].spec.revision == "2"


def test_memory_of_another_degree_is_no_change_of_an_engine() -> None:
    node = Driver(service("a", 7.0))
    node.resident(on("a"))
    node.resident(on("a", 0, 2))
    assert node.set(service("a", 7.0, memory_by={2: EngineMemory(5.0, {}, {})})) == [Stop(on("a", 0, 2))]
    node.step(on("a", 0, 2))
    node.resident(on("a", 0, 2))
    assert (node.view(on("a")).device_gb, node.view(on("a", 0, 2)).device_gb) == (7.0, 5.0)


def test_a_change_that_makes_no_other_engine_leaves_it_resident() -> None:
    node = Driver(service("a"))
    node.resident(on("a"))
    assert node.set(service("a", concurrency=2, priority=7, min_residency_s=1.0)) == []
    assert [node.want(holder, on("a")) for holder in ("h1", "h2")] == [[Admit(h, on("a"))] for h in ("h1", "h2")]


def test_holders_that_a_changed_service_cannot_serve_are_refused() -> None:
    node = Driver(service("a"))
    node.resident(on("a", 0, 2))
    node.want("h1", on("a", 0, 2))
    node.want("h2", on("a", 0, 2))
    refused = refusal(node.set(service("a", degrees=(1,))))
    assert (refused.holder, refused.retry_in_s) == ("h2", None)
    assert node.end("h1") == [Stop(on("a", 0, 2))]


def test_a_service_that_comes_back_while_its_engine_stops_is_loaded_again() -> None:
    node = Driver(service("a"))
    node.resident(on("a"))
    assert node.remove("a") == [Stop(on("a"))]
    node.set(service("a"))
    assert node.want("h", on("a")) == []
    assert node.step(on("a")) == [LoadEngine(on("a"))]


def test_a_service_that_is_removed_during_its_load_is_stopped_after_it() -> None:
    node = Driver(service("a"))
    node.want("h", on("a"))
    assert refusal(node.remove("a")).holder == "h"
    assert node.step(on("a")) == [Stop(on("a"))]
    node.step(on("a"))
    assert node.serving.view() == []


def test_a_changed_service_is_no_longer_quarantined() -> None:
    node = Driver(service("a"))
    node.want("h", on("a"))
    node.step(on("a"), "failed")
    node.step(on("a"))
    node.set(service("a", revision="2"))
    assert node.want("h2", on("a")) == [LoadEngine(on("a"))]


def test_engines_on_a_bad_gpu_are_stopped_and_holders_refused_until_it_is_good() -> None:
    node = Driver(service("a", 5.0), service("b", 5.0), config=ServingConfig(bad_device_retry_s=33.0))
    node.resident(on("b", 1))
    node.resident(on("a", 0, 2))
    node.want("h1", on("a", 0, 2))
    node.want("h2", on("a", 0, 2))
    commands = node.mark(0, good=False)
    assert commands == [
        RefuseHolder("h1", "GPU 0 is bad: Xid 79", 33.0),
        RefuseHolder("h2", "GPU 0 is bad: Xid 79", 33.0),
        Stop(on("a", 0, 2)),
    ]
    node.step(on("a", 0, 2))
    assert refusal(node.want("h3", on("a"))).retry_in_s == 33.0
    assert node.want("h4", on("b", 1)) == [Admit("h4", on("b", 1))], "the other GPU goes on"
    node.mark(0, good=True)
    assert node.want("h5", on("a")) == [LoadEngine(on("a"))]


def test_a_quarantined_instance_on_a_bad_gpu_is_probed_when_it_is_good() -> None:
    node = Driver(service("a"), config=ServingConfig(first_probe_s=10.0))
    node.want("h", on("a"))
    node.step(on("a"), "failed")
    node.step(on("a"))
    node.mark(0, good=False)
    assert node.after(50.0) == []
    assert node.mark(0, good=True) == [LoadEngine(on("a"))]


def test_a_gpu_that_the_node_does_not_have_changes_nothing() -> None:
    node = Driver(service("a"))
    assert node.mark(7, good=False) == []


def test_a_changed_service_whose_engine_cannot_be_stopped_refuses_its_holders_until_it_is() -> None:
    node = Driver(service("a"), config=ServingConfig(first_probe_s=10.0))
    node.resident(on("a"))
    node.set(service("a", revision="2"))
    node.step(on("a"), "failed")
    refused = refusal(node.want("h", on("a")))
    assert "could not be stopped" in refused.reason
    assert refused.retry_in_s == 10.0
    assert node.wake() == [Stop(on("a"))]
    node.step(on("a"))
    assert node.want("h2", on("a")) == [LoadEngine(on("a"))]
