"""Waits of elastic work: what is known of a wait is what would be computed now."""

from __future__ import annotations

import heapq
from random import Random

import pytest

from shared.policy.dispatch import elastic_waits
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import InventoryReported, Stimulus
from shared.policy.elastic.scheduling import Scalable, enough
from shared.policy.model.formulation import Command, Grant
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.ledger import Node
from tests.shared.policy.dispatch.test_elastic_grants import scaled
from tests.shared.policy.strategies import SPECS, joined, reported, request, submitted, work

CORES = 8
Step = tuple[float, Stimulus, list[Command]]


class CountedEnough:
    """Counts the computations of how many units to wait for."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, head: Scalable, free: int, busy_s: list[float]) -> int:
        self.calls += 1
        return enough(head, free, busy_s)


def elastic_history(seed: int, steps: int = 400) -> list[Step]:
    """Mostly elastic work on six nodes. Some ends earlier than predicted and some later."""
    rng, dispatcher, made = Random(seed), Dispatcher(specs=SPECS), list[Step]()
    ends: list[tuple[float, int, Grant]] = []
    predicted_s: dict[str, float] = {}

    def give(now: float, stimulus: Stimulus) -> None:
        commands = dispatcher.handle(now, stimulus)
        made.append((now, stimulus, commands))
        for one in commands:
            if isinstance(one, Grant):
                lasts_s = predicted_s[one.action] / one.units["cores"] * rng.choice((1.0, 1.0, 0.6, 1.7))
                heapq.heappush(ends, (now + lasts_s, len(made), one))

    def submit(now: float) -> None:
        name = f"a{len(predicted_s)}"
        predicted_s[name] = rng.uniform(0.5, 8.0)
        stage = scaled(seconds=predicted_s[name]) if rng.random() < 0.8 else work(units={"cores": rng.choice((1, 4))})
        give(now, submitted(request(name, stage, priority=rng.choice((0.0, 0.0, -1.0, 1.0)))))

    for name in "abcdef":
        give(0.0, joined(Node(name, "1", "cpu", {"cores": CORES}, frozenset({"run"}))))
        give(0.0, InventoryReported(name, "1", {}))
    for _ in range(40):
        submit(0.0)
    now = 0.0
    while len(made) < steps:
        now, _, grant = heapq.heappop(ends)
        give(now, reported(Ended(grant.action, grant.node, grant.attempt, grant.stage, AttemptResult("ok", True))))
        submit(now)
    return made


@pytest.mark.parametrize("seed", range(8))
def test_decisions_are_those_of_a_dispatcher_that_knows_no_waits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = CountedEnough()
    monkeypatch.setattr(elastic_waits, "enough", counted)
    made = elastic_history(seed)
    computed, counted.calls = counted.calls, 0
    again = Dispatcher(specs=SPECS)
    for now, stimulus, commands in made:
        again.cluster.elastic_waits.clear()
        assert again.handle(now, stimulus) == commands, stimulus
    assert computed < counted.calls, "some waits were known"


def test_waits_of_a_node_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_waits, "MOST_KNOWN", 2)
    again = Dispatcher(specs=SPECS)
    for now, stimulus, commands in elastic_history(1):
        assert again.handle(now, stimulus) == commands
        assert all(len(waits) <= 2 for waits in again.cluster.elastic_waits.values())
