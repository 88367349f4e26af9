"""Canonical keys of states: two states with the same key have the same future.

Times count as what is left of them, and times of use as their order. Measured times are equal to their defaults in the
cases of the model checker, so they decide nothing and are no part of a key. Reasons count as being there or not.
"""

from __future__ import annotations

from collections.abc import Hashable

from shared.policy.serving.config import ServingConfig
from shared.policy.serving.instance import EngineInstance
from shared.policy.serving.node_serving import NodeServing
from shared.policy.serving.yields import LATE
from tests.shared.policy.serving.fake_node import FakeNode


def node_key(node: FakeNode) -> Hashable:
    """Return the key of a fake node."""
    engines = tuple(
        (one, engine.place, engine.partial, engine.canaried, engine.dead, engine.host, engine.spec.revision)
        for one, engine in sorted(node.engines.items())
    )
    return (
        engines,
        tuple(sorted(node.steps.items())),
        tuple(sorted(node.waiting)),
        tuple(sorted(node.running)),
        tuple(sorted(node.unfound)),
        tuple(sorted(node.bad)),
        tuple(sorted((name, spec.revision) for name, spec in node.specs.items())),
        tuple(sorted(node.states.items())),
        tuple(sorted(node.checking)),
        tuple(sorted(node.cancelled)),
        tuple(sorted(node.yielding)),
    )


def check_agenda(serving: NodeServing) -> None:
    """Check that between stimuli exactly the instances with something to do are on the agenda."""
    state = serving._state
    assert state.agenda.keys() == {name for name, one in state.instances.items() if not one.dormant}


def state_key(serving: NodeServing, now: float) -> Hashable:
    """Return a canonical key of a machine."""
    state = serving._state
    assert not state.commands
    assert not state.changed
    check_agenda(serving)
    instances: list[EngineInstance] = [one for _, one in sorted(state.instances.items())]
    used = sorted({one.used_s for one in instances})
    orders = sorted(holder.order for one in instances for holder in one.waiting.values())
    return (
        tuple(_instance_key(one, now, state.config, used, orders) for one in instances),
        tuple(tuple(sorted(one.id for one in state.active_on(gpu))) for gpu in range(len(state.gpus))),
        tuple(state.sleepers),
        tuple(sorted(state.bad)),
        tuple(sorted(state.services)),
    )


def _instance_key(
    one: EngineInstance, now: float, config: ServingConfig, used: list[float], orders: list[int]
) -> Hashable:
    def left(at_s: float | None, after_s: float = 0.0) -> float | None:
        return None if at_s is None else max(0.0, at_s + after_s - now)

    waiting = tuple(
        (name, orders.index(holder.order), left(holder.arrived_s, config.max_wait_s))
        for name, holder in one.waiting.items()
    )
    activation = None if one.activation is None else (tuple(sorted(one.activation.room)), one.activation.oom)
    reasons = (bool(one.leaving), bool(one.stop_why), bool(one.died), bool(one.quarantine))
    return (
        (one.id, one.spec.revision, one.state, one.place, one.claim, one.host, one.step, one.target, one.checked),
        (activation, one.room_for, waiting, tuple(one.running), used.index(one.used_s), reasons),
        (left(one.restored_s, one.spec.min_residency_s), left(one.drain_s, config.max_drain_s)),
        (left(one.aborted_s, config.abort_limit_s), left(one.probe_s) if one.quarantine else None),
        (left(one.unanswered_s, config.hung_after_s), bool(one.unanswered), one.suspect),
        (one.checking_s is None, one.answered_meanwhile),
        (_lasted(one, now, config), one.cancelled, one.late),
        (left(one.yields_until_s), left(one.yielded_s, config.max_wait_s)),
        (left(one.found_by_s), one.faults, min(one.deaths, config.most_deaths), one.probing, one.stuck, one.left),
    )


def _lasted(one: EngineInstance, now: float, config: ServingConfig) -> float | None:
    """Time that a load or restore has lasted, up to that after which it is late."""
    if one.step not in ("load", "restore"):
        return None
    late_s = max(config.max_wait_s, LATE * max(config.restore_s.values()))
    return min(now - one.since_s, late_s * float(2**one.late))
