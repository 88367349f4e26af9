"""What a new leader of the router knows of calls in flight."""

from __future__ import annotations

import pytest

from shared.policy.routing.model import (
    CallArrived,
    CallEnded,
    CallRestored,
    ModelCall,
    PinRestored,
    Send,
    Worker,
    WorkerSet,
)
from shared.policy.routing.router import Router


def call(name: str, trajectory: str) -> ModelCall:
    return ModelCall(
        id=name,
        replica="r1",
        trajectory=trajectory,
        tenant="default",
        group="",
        model="",
        priority=0.0,
        context_tokens=1,
        most_tokens=None,
        deadline_s=100.0,
    )


@pytest.mark.parametrize("trajectory", ["", "t1"])
def test_a_call_at_a_removed_worker_counts_when_that_is_registered_again(trajectory: str) -> None:
    router = Router()
    pins = (PinRestored("t1", "w1", 0.0),) if trajectory else ()
    router.handle(0.0, *pins, CallRestored(call("c1", trajectory), "w1"))
    router.handle(1.0, WorkerSet(Worker("w1", most_calls=1)))
    assert not any(isinstance(one, Send) for one in router.handle(1.0, CallArrived(call("c2", ""))))
    router.check()
    assert Send("c2", "r1", "w1") in router.handle(2.0, CallEnded("c1", "ok"))
    router.check()
