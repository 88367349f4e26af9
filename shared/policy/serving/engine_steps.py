"""Engines: evictions and stops, deaths, adoption after a restart, quarantine and its probes.

Laws (tests/shared/policy/serving/test_engines.py):
  - memory is free when a step has confirmed it, and not before; what could not be stopped stays counted;
  - a quarantined instance has no engine, and a probe follows by itself, after a pause that doubles up to a cap;
  - an engine whose place differs from the one that was confirmed is stopped: it may hold more memory than is counted.
"""

from __future__ import annotations

from math import inf

from shared.policy.serving.holder_queue import HolderQueue
from shared.policy.serving.instance import EngineInstance
from shared.policy.serving.model import Abort, EngineDied, Expected, Found, Residency, Stepped
from shared.policy.serving.node_state import NodeState

MOST_DOUBLINGS = 30
"""Doublings of a probe's pause; the cap of its seconds comes earlier."""


class EngineSteps:
    """Changes of engines. A method is O(GPUs of the instance + its holders) if its docstring has no other cost."""

    def __init__(self, state: NodeState, queue: HolderQueue) -> None:
        self._state = state
        self._queue = queue

    # ---- ends of evictions and stops -----------------------------------------------------------------------------

    def evicted(self, one: EngineInstance, stepped: Stepped, now: float) -> None:
        """Handle the end of an eviction. An engine that did not fall asleep is stopped."""
        state, level = self._state, one.target
        if stepped.outcome == "ok" and not one.died:
            state.times.record(one.id, "evict", level, stepped.took_s)
            state.settle_place(one, level)
            state.set_state(one, "evicted", one.why, now)
            self._made_room(one)
            return
        reason, one.died = one.died or stepped.reason, ""
        state.begin(one, "stop", f"it could not be evicted to {level}: {reason}", now)

    def stopped(self, one: EngineInstance, stepped: Stepped, now: float) -> None:
        """Handle the end of a stop. After one that failed the memory stays counted, and a probe stops it again.

        An engine that was given by its address sleeps after its stop, or nothing listens there any more. If neither is
        confirmed, the stop has failed.
        """
        state, one.died = self._state, ""
        if stepped.outcome != "ok":
            one.stuck = True
            self.quarantine(one, f"its engine could not be stopped: {stepped.reason}", now)
        else:
            state.times.record(one.id, "evict", "cold", stepped.took_s)
            state.settle_place(one, "cold", stepped.left)
            one.stop_why = ""
            if one.stuck:
                one.stuck, one.quarantine = False, ""
            state.set_state(one, "quarantined" if one.quarantine else "cold", one.quarantine or one.why, now)
        self._made_room(one)

    def _made_room(self, one: EngineInstance) -> None:
        """End the wait of the activation for which this instance was evicted or stopped."""
        other = None if one.room_for is None else self._state.instances.get(one.room_for)
        one.room_for = None
        if other is not None and other.activation is not None:
            other.activation.room.pop(one.id, None)
            self._state.touch(other)

    # ---- quarantine ----------------------------------------------------------------------------------------------

    def quarantine(
        self, one: EngineInstance, reason: str, now: float, *, failed: bool = True, least_s: float = 0.0
    ) -> None:
        """Have an instance stopped, refuse its holders, and set the time of its probe.

        Args:
            one: the instance.
            reason: for people.
            now: seconds.
            failed: the pause before the probe doubles.
            least_s: shortest pause.
        """
        state, config = self._state, self._state.config
        one.failures += failed
        doublings = min(max(0, one.failures - 1), MOST_DOUBLINGS)
        pause_s = max(least_s, min(config.most_probe_s, config.first_probe_s * 2**doublings))
        one.quarantine, one.probe_s, one.probing, one.activation = reason, now + pause_s, False, None
        why = f"{one.id} is quarantined: {reason}"
        self._queue.refuse_running(one, why, pause_s)
        if one.stuck or not one.leaving:
            self._queue.refuse_waiting(one, why, pause_s)
        if one.stuck or one.stopped:
            one.stop_why = ""
            state.set_state(one, "quarantined", reason, now)
        else:
            state.must_stop(one, reason, now)

    def probe(self, one: EngineInstance, now: float) -> None:
        """Handle the time of a probe: a stuck engine is stopped again, another one may be loaded."""
        if one.stuck:
            self._state.must_stop(one, f"again, because {one.quarantine}", now)
            return
        why = f"a probe is due, it was quarantined: {one.quarantine}"
        one.quarantine, one.probing, one.probe_s = "", True, inf
        self._state.set_state(one, "cold", why, now)

    # ---- deaths --------------------------------------------------------------------------------------------------

    def died(self, now: float, died: EngineDied) -> None:
        """Handle the death of an engine: its holders are refused, and what is left of it is stopped."""
        one = self._state.instances.get(died.instance)
        if one is not None:
            self._die(one, died.reason, now)

    def hung(self, one: EngineInstance, reason: str, now: float) -> None:
        """Handle an engine that answers nothing any more, as a death."""
        self._die(one, reason, now)

    def _die(self, one: EngineInstance, reason: str, now: float) -> None:
        if one.step is not None:  # its end is reported as well, and is a failure
            one.died = one.died or reason
            return
        if one.claim == "cold" or one.stop_why:
            return
        one.deaths += 1
        self._queue.refuse_running(one, f"the engine of {one.id} died: {reason}", self._load_s(one))
        one.activation = None
        if one.stuck or one.deaths < self._state.config.most_deaths:
            self._state.must_stop(one, f"its engine died: {reason}", now)
        else:
            self.quarantine(one, f"its engine died {one.deaths} times in a row, last: {reason}", now)

    def kill(self, one: EngineInstance, reason: str, now: float) -> None:
        """Have an engine stopped whose holders did not end, and refuse them."""
        self._queue.refuse_running(one, f"the engine of {one.id} was stopped: {reason}", self._load_s(one))
        self._state.must_stop(one, reason, now)

    def _load_s(self, one: EngineInstance) -> float:
        return max(self._state.config.retry_s, self._state.times.restore_s(one.id, "cold"))

    # ---- restart -------------------------------------------------------------------------------------------------

    def expected(self, now: float, expected: Expected) -> None:
        """Count an engine of a former process as using all it may until its residency is found."""
        state = self._state
        if expected.instance in state.instances or not state.has_chunk(expected.instance):
            return
        one = state.get_or_add(expected.instance, now)
        state.count_unknown(one)
        one.found_by_s = now + state.config.found_limit_s
        state.set_state(one, "unknown", "a former process may have left its engine here", now)

    def found(self, now: float, found: Found) -> None:
        """Adopt an engine, or stop it. O(active instances on its GPUs + sleepers)."""
        state = self._state
        known = state.instances.get(found.instance)
        if known is None or known.state == "unknown":
            if state.has_chunk(found.instance):
                self._adopt(known or state.get_or_add(found.instance, now), found.residency, now)
            return
        place = "awake" if found.residency == "resident" else found.residency
        if known.step is not None or known.stop_why or place in (known.place, "unknown"):
            return  # the end of the step is to come, or there is no news
        reason = f"its engine was found {found.residency}, and is {known.place} by its last step"
        if known.claim == "cold":
            known.claim = "awake"
            state.must_stop(known, reason, now)
        else:
            self._die(known, reason, now)

    def _adopt(self, one: EngineInstance, residency: Residency, now: float) -> None:
        state = self._state
        one.found_by_s = inf
        if residency == "cold":
            state.settle_place(one, "cold")
            state.set_state(one, "cold", "no engine was found", now)
            return
        why = self._unfit(one, residency)
        if why:
            state.count_unknown(one)
            state.must_stop(one, why, now)
        elif residency == "resident":
            state.set_host(one, "cold")
            one.place = one.claim = "awake"
            state.commands.append(Abort(one.id))  # nobody waits for the requests of a former process
            state.set_state(one, "resident", "it was found so, and was not checked yet", now)
        elif residency != "unknown":
            state.settle_place(one, residency)
            state.set_state(one, "evicted", f"it was found {residency}", now)

    def _unfit(self, one: EngineInstance, residency: Residency) -> str:
        """Reason for which a found engine cannot be kept; empty if it can."""
        state = self._state
        spec = state.services.get(one.id.service)
        if residency == "unknown":
            return "its residency could not be read"
        if spec is None or one.id.chunk.size not in spec.degrees:
            return f"{one.id} is not declared"
        spec = spec.of_degree(one.id.chunk.size)
        bad = state.bad_reason(one.id)
        if bad:
            return bad
        if residency not in ("resident", *spec.levels):
            return f"{one.id} has no level {residency}"
        if residency == "resident":
            gb = spec.awake_gb
        else:
            gb = spec.asleep_gb.get(residency, 0.0)
            others = (
                other.host_gb for other in state.sleepers.values() if other.state != "unknown" and other is not one
            )
            if sum(others) + spec.host_gb.get(residency, 0.0) > state.memory.host_gb:
                return "sleeping engines were found with more host memory than the budget"
        for gpu in one.id.chunk.gpus:
            others = (it.device_gb for it in state.active_on(gpu) if it.state != "unknown" and it is not one)
            if sum(others) + gb > state.memory.device_gb[gpu]:
                return f"engines were found with more memory than GPU {gpu} has"
        return ""
