"""Messages of nodes as stimuli of the dispatcher."""

from __future__ import annotations

import math

import msgspec
import pytest

from services.proxy.leader.messages import to_inventory, to_services
from shared.messages.outcomes import (
    EnvironmentHeld,
    GrantHeld,
    InventoryTaken,
    Outcome,
    ServiceHeld,
    ServicesChanged,
)
from shared.policy.model.chunks import Chunk
from shared.policy.model.reports import HeldGrant


def test_a_report_of_model_services_keeps_chunks_and_times() -> None:
    held = ServiceHeld(service="a", degrees=[1, 2], concurrency=4, awake_gb=16.0, resident=[(2, 2)],
                       restore_s={1: 2.0, 2: 9.0}, evict_s={1: 3.0}, asleep=[(1, 1, 0.3)])  # fmt: skip
    changed = ServicesChanged(
        node="n", incarnation="1", resource="gpus", services=[held], device_gb=[24.0] * 4, bad=[0], released=[1]
    )
    stimulus = to_services(changed)
    found = stimulus.services["a"]
    assert (found.degrees, found.concurrency, found.resident) == ((1, 2), 4, frozenset({Chunk(2, 2)}))
    assert found.restore_s == {1: 2.0, 2: 9.0}
    assert found.evict_s == {1: 3.0}
    assert found.asleep == {Chunk(1, 1): 0.3}
    assert (stimulus.bad, stimulus.released) == ((0,), (1,))


def test_memory_by_degree_reaches_the_leader_and_older_nodes_have_one_for_all() -> None:
    held = ServiceHeld(service="a", degrees=[1, 2, 4], concurrency=1, awake_gb=30.0,
                       awake_gb_by={1: 30.0, 2: 16.0, 4: math.nan})  # fmt: skip
    changed = ServicesChanged(node="n", incarnation="1", resource="gpus", services=[held], device_gb=[24.0] * 4)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(changed), type=Outcome)
    assert isinstance(read, ServicesChanged)
    found = to_services(read).services["a"].on(4)
    assert [found.gb(degree) for degree in (1, 2, 4)] == [30.0, 16.0, 30.0]
    older = msgspec.convert(msgspec.to_builtins(held)[:-3], ServiceHeld)
    found = to_services(msgspec.structs.replace(changed, services=[older])).services["a"]
    assert [found.gb(degree) for degree in (1, 2)] == [30.0, 30.0]


def test_sleeping_engines_reach_the_leader_and_older_nodes_report_none() -> None:
    held = ServiceHeld(service="a", degrees=[1], concurrency=1, awake_gb=16.0,
                       asleep=[(0, 1, 0.3), (1, 1, math.nan), (9, 1, 0.3)])  # fmt: skip
    changed = ServicesChanged(node="n", incarnation="1", resource="gpus", services=[held], device_gb=[24.0] * 2)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(changed), type=Outcome)
    assert isinstance(read, ServicesChanged)
    assert to_services(read).services["a"].on(2).asleep == {Chunk(0, 1): 0.3, Chunk(1, 1): 0.0}
    older = msgspec.convert(msgspec.to_builtins(held)[:-2], ServiceHeld)
    assert to_services(msgspec.structs.replace(changed, services=[older])).services["a"].asleep == {}


def test_reasons_of_unusable_engines_reach_the_leader_and_older_nodes_report_none() -> None:
    held = ServiceHeld(service="a", degrees=[1], concurrency=1, awake_gb=16.0, why_unusable="quarantined: it dies")
    changed = ServicesChanged(node="n", incarnation="1", resource="gpus", services=[held], device_gb=[24.0])
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(changed), type=Outcome)
    assert isinstance(read, ServicesChanged)
    assert to_services(read).quarantined == {"a": "quarantined: it dies"}
    older = msgspec.convert(msgspec.to_builtins(held)[:-1], ServiceHeld)
    assert to_services(msgspec.structs.replace(changed, services=[older])).quarantined == {}


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf, -math.inf, 1e300])
def test_an_inventory_has_no_units_and_times_that_cannot_be(wrong: float) -> None:
    units = {"cores": 1, "gpus": -1, "memory_mb": 1 << 63}
    held = GrantHeld(action="a", epoch=1, attempt=1, stage=0, units=units, running_s=wrong, paused_s=wrong)
    environment = EnvironmentHeld(trajectory="t", units=units)
    taken = InventoryTaken(node="n", incarnation="1", epoch=1, held=[held], environments=[environment])
    found = to_inventory(taken)
    assert found.held["a"] == HeldGrant(0, 1, 0.0, {"cores": 1}, paused_s=0.0)
    assert found.environments == {"t": {"cores": 1}}
