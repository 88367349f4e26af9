"""Messages of nodes as stimuli of the dispatcher."""

from __future__ import annotations

import math

import msgspec

from services.proxy.leader.messages import to_services
from shared.messages.outcomes import Outcome, ServiceHeld, ServicesChanged
from shared.policy.model.chunks import Chunk


def test_a_report_of_model_services_keeps_chunks_and_believable_times() -> None:
    held = ServiceHeld(service="a", degrees=[1, 2], concurrency=4, awake_gb=16.0, resident=[(2, 2)],
                       restore_s={1: 2.0, 2: 9.0, 4: math.inf, 8: math.nan},
                       evict_s={1: 3.0, 2: -1.0, 4: math.inf, 8: math.nan})  # fmt: skip
    changed = ServicesChanged(
        node="n", incarnation="1", resource="gpus", services=[held], device_gb=[24.0] * 4, bad=[0], released=[1]
    )
    stimulus = to_services(changed)
    found = stimulus.services["a"]
    assert (found.degrees, found.concurrency, found.resident) == ((1, 2), 4, frozenset({Chunk(2, 2)}))
    assert found.restore_s == {1: 2.0, 2: 9.0}
    assert found.evict_s == {1: 3.0}
    assert (stimulus.bad, stimulus.released) == ((0,), (1,))


def test_memory_by_degree_reaches_the_leader_and_older_nodes_have_one_for_all() -> None:
    held = ServiceHeld(service="a", degrees=[1, 2, 4], concurrency=1, awake_gb=30.0,
                       awake_gb_by={1: 30.0, 2: 16.0, 4: math.nan})  # fmt: skip
    changed = ServicesChanged(node="n", incarnation="1", resource="gpus", services=[held], device_gb=[24.0] * 4)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(changed), type=Outcome)
    assert isinstance(read, ServicesChanged)
    found = to_services(read).services["a"]
    assert [found.gb(degree) for degree in (1, 2, 4)] == [30.0, 16.0, 30.0]
    older = msgspec.convert(msgspec.to_builtins(held)[:-1], ServiceHeld)
    found = to_services(msgspec.structs.replace(changed, services=[older])).services["a"]
    assert [found.gb(degree) for degree in (1, 2)] == [30.0, 30.0]
