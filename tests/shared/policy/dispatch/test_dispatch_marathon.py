"""Long, dense histories by weighted chance: states that the shrinking machine reaches seldom, under the same laws.

Each seed is a history of its own; together they must have seen every way to be answered, or they prove too little.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from shared.policy.dispatch import node_choice
from shared.policy.dispatch.node_choice import FEW
from tests.shared.policy.dispatch.test_dispatch_machine import POOLS, MeshMachine
from tests.shared.policy.strategies import COSTS, ENVIRONMENTS, work

STEPS = 250
SEEDS = 100

WEIGHTS = {
    "submit": 30, "grants_arrive": 40, "end": 60, "read": 40, "deliver": 10, "write": 10, "pass_time": 12, "started": 4,
    "cancel": 6, "cancel_batch": 1, "target": 3, "planner": 3, "estimate": 3, "stop_host": 3, "start_hosts": 6,
    "cut_off_or_rejoin": 2, "take_over": 4, "tear": 2, "trim": 2, "act": 10, "park": 16, "resume": 12,
    "handle_together_or_apart": 3, "submit_locally": 20,
}  # fmt: skip


def drafts(rng: random.Random) -> list[dict[str, Any]]:
    return [
        {
            "stages": tuple(
                work(pool, units, kind=rng.choice(["run", "run", "run", "judge"]), timeout_s=rng.choice([1.0, 5.0]),
                     repeatable=rng.random() < 0.8)
                for pool, units in rng.choices(COSTS, k=rng.choice([1, 2, 3]))
            ),
            "batch": rng.choice(["", "b1", "b2"]),
            "tenant": rng.choice(["ada", "bob"]),
            "budget_s": rng.choice([20.0, 1e6, 1e6]),
            "start_within_s": rng.choice([None, None, None, 0.5, 10.0]),
            "priority": rng.choice([0.0, 1.0]),
        }
        for _ in range(rng.randint(1, 5))
    ]  # fmt: skip


def acts(rng: random.Random) -> list[dict[str, Any]]:
    return [
        {
            "need": rng.choice(ENVIRONMENTS),
            "quotas": rng.choice([{}, {}, {"search": 1.0}, {"search": 1.0, "changing": 0.5}]),
            "work": work(units={"cores": rng.randint(1, 3)}, kind="act", timeout_s=5.0, repeatable=rng.random() < 0.5),
            "budget_s": rng.choice([20.0, 1e6, 1e6]),
        }
        for _ in range(rng.randint(1, 2))
    ]


def endings(rng: random.Random) -> list[tuple[int, tuple[str, bool | None]]]:
    common = [("ok", True)] * 9 + [("lost", None)] * 6
    rare: list[tuple[str, bool | None]] = [("ok", None), ("ok", False), ("timeout", None), ("refused", None)]
    return [(rng.randrange(8), rng.choice([*common, *rare])) for _ in range(3)]


ARGUMENTS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "submit": lambda rng: {"drafts": drafts(rng)},
    "act": lambda rng: {"drafts": acts(rng)},
    "submit_locally": lambda rng: {
        "draft": rng.choice(drafts(rng)),
        "accepted": rng.random() < 0.6,
        "at_once": rng.random() < 0.2,
    },
    "park": lambda rng: {"picks": [rng.randrange(8) for _ in range(4)], "leader": rng.random() < 0.3},
    "resume": lambda rng: {"pick": rng.randrange(8)},
    "end": lambda rng: {"ends": endings(rng)},
    "deliver": lambda rng: {"pick": rng.randrange(8), "most": rng.randint(1, 6)},
    "read": lambda rng: {"most": rng.randint(1, 6)},
    "write": lambda rng: {"most": rng.choice([1, 4, 100])},
    "pass_time": lambda rng: {"seconds": rng.choice([0.1, 1.0, 1.0, 6.0, 16.0])},
    "cancel": lambda rng: {"pick": rng.randrange(8)},
    "cancel_batch": lambda rng: {"batch": rng.choice(["b1", "b2"])},
    "target": lambda rng: {"pool": rng.choice(POOLS), "units": rng.randrange(10)},
    "estimate": lambda rng: {"batch": rng.choice(["b1", "b2"]), "ahead_s": rng.uniform(0, 100)},
    "planner": lambda rng: {"planned": rng.random() < 0.5},
    "stop_host": lambda rng: {
        "pick": rng.randrange(8),
        "orderly": rng.random() < 0.5,
        "returns": rng.random() < 0.7,
        "survive": rng.random() < 0.5,
    },
    "cut_off_or_rejoin": lambda rng: {"pick": rng.randrange(8)},
    "started": lambda rng: {"pick": rng.randrange(8)},
    "trim": lambda rng: {"pick": rng.randrange(8)},
}


def rush(rng: random.Random) -> list[dict[str, Any]]:
    """Many small requests: most can be prefetched."""
    return [
        {**draft, "stages": (work(kind=rng.choice(["run", "judge"])),)} if rng.random() < 0.9 else draft
        for draft in drafts(rng) + drafts(rng)
    ]


RUSH: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    **ARGUMENTS,
    "submit": lambda rng: {"drafts": rush(rng)},
    "pass_time": lambda rng: {"seconds": rng.choice([0.001, 0.01, 0.1, 0.3, 3.0])},
}


def possible(rule: str, mesh: MeshMachine) -> bool:
    simulation = mesh.simulation
    match rule:
        case "end" | "park":
            return any(host.runs for host in simulation.hosts.values())
        case "resume":
            return any(run.parked for host in simulation.hosts.values() for run in host.runs.values())
        case "cancel":
            return bool(simulation.journal)
        case "trim":
            return simulation.read < len(simulation.outcomes)
        case _:
            return True


def history(seed: int, arguments: dict[str, Callable[[random.Random], dict[str, Any]]]) -> Counter[str]:
    """Run one history and return its counts."""
    rng = random.Random(seed)
    mesh = MeshMachine()
    mesh.begin()
    for _ in range(STEPS):
        (rule,) = rng.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
        if possible(rule, mesh):
            getattr(mesh, rule)(**(arguments[rule](rng) if rule in arguments else {}))
            mesh.all_laws_hold()
    mesh.teardown()
    simulation = mesh.simulation
    seen: Counter[str] = Counter(answer.ended for answer in simulation.answers.values())
    for answer in simulation.answers.values():
        seen["early exit"] += answer.ended == "ok" and len(answer.acts) < len(simulation.requests[answer.action].stages)
        seen["cancelled between stages"] += answer.ended == "cancelled" and len(answer.acts) > 0
        seen["repeated"] += any(act.attempts > 1 for act in answer.acts)
    seen["granted ahead"] = simulation.waited
    seen["recalled"] = simulation.recalled
    seen["parked"], seen["resumed"] = simulation.parked, simulation.resumed
    seen["parked under an earlier leader"] = simulation.adopted
    seen["withdrawn"] = len(simulation.withdrawn)
    seen["waited without a planner"] = simulation.starved
    seen["nodes ranked"] = len(simulation.leader.cluster.nodes.rankings._rankings)
    return seen


def test_long_histories_keep_the_laws_and_see_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """In half of them rankings choose among few nodes too, and each step compares every ranking with a fresh one."""
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        monkeypatch.setattr(node_choice, "FEW", FEW if seed % 4 < 2 else 0)
        seen += history(seed, RUSH if seed % 2 else ARGUMENTS)
    everything = {"ok", "timeout", "cancelled", "expired", "refused", "sandbox-lost", "node-lost", "unknown-outcome"}
    assert everything | {
        "early exit",
        "cancelled between stages",
        "repeated",
        "granted ahead",
        "recalled",
        "parked",
        "resumed",
        "parked under an earlier leader",
        "environment-lost",
        "waited without a planner",
        "withdrawn",
        "nodes ranked",
    } <= {name for name, count in seen.items() if count}, seen
