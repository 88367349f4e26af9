"""All interleavings of small cases: no law is broken, and no state is a dead end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.policy.model.chunks import Chunk
from shared.policy.serving.activations import Activations
from shared.policy.serving.instance import EngineInstance
from shared.policy.serving.model import (
    Admit,
    CancelStep,
    CheckLiveness,
    EngineMemory,
    Evict,
    InstanceId,
    LoadEngine,
    ModelServiceSpec,
    NodeMemory,
    Restore,
    RunCanary,
    Stop,
    YieldChanged,
)
from tests.shared.policy.serving.environment_moves import CONFIG, Budget, Case
from tests.shared.policy.serving.model_checker import explore

A0, B0, C0 = (InstanceId(name, Chunk(0, 1)) for name in "abc")
A1, B1, C1 = (InstanceId(name, Chunk(1, 1)) for name in "abc")
A01, B01 = (InstanceId(name, Chunk(0, 2)) for name in "ab")
ONE = NodeMemory((16.0, 16.0))
TWO = NodeMemory((16.0, 16.0), 8.0)


def big(name: str, **more: object) -> ModelServiceSpec:
    return ModelServiceSpec(name, 10.0, ("cold", "asleep2"), (1, 2), **more)  # type: ignore[arg-type]


def small(name: str, **more: object) -> ModelServiceSpec:
    levels = ("cold", "asleep1")
    return ModelServiceSpec(name, 7.0, levels, (1, 2), {"asleep1": 1.0}, {"asleep1": 8.0}, **more)  # type: ignore[arg-type]


LESS = {2: EngineMemory(5.0, {}, {})}
MORE = {2: EngineMemory(12.0, {"asleep1": 2.0}, {"asleep1": 16.0})}

YIELDING = replace(CONFIG, yield_s=4.0)
CASES = {
    "two services on one GPU": Case(ONE, (big("a"), big("b")), (A0, B0, A0), Budget(failures=2, cancels=1)),
    "a restart": Case(ONE, (big("a"), big("b")), (A0, B0), Budget(failures=1, restarts=1, cancels=1)),
    "deaths": Case(ONE, (big("a"), big("b", concurrency=2)), (A0, B0, B0), Budget(failures=1, deaths=2)),
    "degrees of one service": Case(ONE, (big("a"), big("b")), (A01, A0, B1), Budget(failures=1)),
    "memory by degree": Case(
        TWO, (big("a", memory_by=LESS), small("b", memory_by=MORE)), (A01, B0, B01), Budget(failures=1)
    ),
    "an overlap that dies": Case(ONE, (big("a"), big("b")), (A01, B0, A01), Budget(deaths=1)),
    "a restart with an overlap": Case(ONE, (big("a"), big("b")), (A01, B1), Budget(failures=1, restarts=1)),
    "a victim beside a holder": Case(TWO, (big("a"), small("b"), big("c")), (A01, B1, C1), Budget(failures=1)),
    "host memory for one sleeper": Case(
        TWO, (small("a"), small("b"), small("c")), (A0, B0, C0, A0), Budget(failures=1)
    ),
    "host memory of two GPUs": Case(TWO, (big("a"), small("b"), small("c")), (A0, B0, B1, C1), Budget()),
    "residency": Case(
        ONE, (big("a", min_residency_s=2.0), big("b", min_residency_s=8.0)), (A0, B0, A0, B0), Budget(cancels=1)
    ),
    "a removed and a changed service": Case(
        ONE, (big("a"), big("b")), (A0, B0), Budget(failures=1, removals=1, changes=1)
    ),
    "an engine that hangs": Case(
        ONE,
        (big("a", concurrency=2), big("b")),
        (A0, A0, B0),
        Budget(silences=2, unanswered=1),
        replace(CONFIG, hung_after_s=4.0),
    ),
    "loads that are late": Case(ONE, (big("a"), big("b")), (A01, B0, B1), Budget(cancels=1)),
    "loads that yield": Case(ONE, (big("a"), big("b")), (A0, B0, A0), Budget(failures=1, cancels=1), YIELDING),
    "loads that yield beside an overlap": Case(ONE, (big("a"), big("b")), (A01, B0, B1), Budget(cancels=1), YIELDING),
    "a bad GPU": Case(ONE, (big("a"), big("b")), (A01, B1), Budget(failures=1, deaths=1, bad_gpus=1)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_every_interleaving_keeps_the_laws(case: Case) -> None:
    found = explore(case, 60_000)
    assert {LoadEngine, RunCanary, Admit} <= found.seen
    assert Evict in found.seen
    assert (len(set(case.wanted)) < len(case.wanted)) <= (Restore in found.seen)
    assert bool(case.budget.failures or case.budget.deaths or case.budget.restarts) <= (Stop in found.seen)
    assert bool(case.budget.cancels and not case.budget.removals) <= (CancelStep in found.seen)
    assert bool(case.config.yield_s) == (YieldChanged in found.seen)
    assert bool(case.budget.silences) == (CheckLiveness in found.seen)
    assert not found.dead_ends, "\n  ".join(found.dead_ends[0])


def test_a_broken_law_is_found_with_the_moves_that_lead_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here an instance is used beside the holders of another one."""
    monkeypatch.setattr(Activations, "_may_use", lambda _self, _one, _others, _now: True)
    with pytest.raises(AssertionError, match=r"(?s)^AssertionError: .*after:\n  start\n  h\d wants"):
        explore(CASES["two services on one GPU"], 60_000)


def test_a_holder_that_waits_for_a_load_that_yields_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineInstance, "yields", property(lambda _self: False))
    with pytest.raises(AssertionError, match="a holder waits for a step that yields"):
        explore(CASES["loads that yield"], 60_000)


def test_a_dead_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here one instance never becomes resident."""
    begin = Activations._begin
    monkeypatch.setattr(Activations, "_begin", lambda self, one, *rest: one.id == B0 or begin(self, one, *rest))
    assert explore(CASES["two services on one GPU"], 60_000).dead_ends
