"""Turns: which instance goes next on the GPUs that have changed, and which ones are fenced.

Order: instances with an overdue holder (one that has waited for `max_wait_s`) by arrival, then resident ones (a batch
of one service before a swap), then the others by arrival, then probes. An overdue holder fences the instances on its
GPUs whose own oldest holder is not overdue, or came later: they admit nobody, and drain. So the oldest overdue holder
of a node has nobody before it, and each holder gets its turn.
"""

from __future__ import annotations

from math import inf

from shared.policy.serving.activations import Activations
from shared.policy.serving.cancellations import StepCancellations
from shared.policy.serving.engine_steps import EngineSteps
from shared.policy.serving.holder_queue import HolderQueue
from shared.policy.serving.instance import EngineInstance
from shared.policy.serving.liveness import LivenessChecks, check_due_s
from shared.policy.serving.model import Abort, InstanceId
from shared.policy.serving.node_state import NodeState
from shared.policy.serving.yields import StepYields


class Turns:
    """Turns of the instances of one node."""

    def __init__(
        self,
        state: NodeState,
        queue: HolderQueue,
        engines: EngineSteps,
        activations: Activations,
        cancellations: StepCancellations,
        liveness: LivenessChecks,
        yields: StepYields,
    ) -> None:
        self._state = state
        self._yields = yields
        self._liveness = liveness
        self._queue = queue
        self._engines = engines
        self._activations = activations
        self._cancellations = cancellations

    def settle(self, now: float) -> None:
        """Do all that is possible after a change. O(A x W): A instances on the GPUs concerned that are not at rest, W
        of which wait or drain. Those with something to do on other GPUs cost one look. The GPUs concerned are the
        changed ones, and all GPUs of engines on these.
        """
        state = self._state
        seen: dict[InstanceId, EngineInstance] = {}
        while state.changed:
            active = self._concerned()
            seen |= active
            state.changed = 0
            for one in active.values():
                self._stop(one, now)
            wanted = [one for one in active.values() if one.waiting or one.probing or one.activation is not None]
            order = sorted(wanted, key=lambda one: self._turn(one, now)) if len(wanted) > 1 else wanted
            for one in order:
                self._activations.advance(one, now)
            for one in wanted:
                self._cancellations.make_way(one, now)
            for one in active.values():
                self._fence(one, now)
        for one in seen.values():
            state.timers.set(one.id, self._next_s(one, now))
            state.put_aside(one)

    def due(self, one: EngineInstance, now: float) -> None:
        """Handle the time of an instance. O(its holders)."""
        state = self._state
        self._liveness.begin(one, now)
        self._yields.due(one, now)
        if one.state == "unknown" and one.step is None and now >= one.found_by_s:
            state.must_stop(one, "its residency was not found in time", now)
        elif self._probes(one) and now >= one.probe_s:
            self._engines.probe(one, now)
        elif one.drain_s is not None and one.running and now >= self._drained_by_s(one):
            limit = f"holders did not end {state.config.max_drain_s:g} s after the fence"
            if one.aborted_s is None:
                one.aborted_s = now
                state.commands.append(Abort(one.id))
            else:
                self._engines.kill(one, f"{limit}, nor {state.config.abort_limit_s:g} s after they were aborted", now)
        state.touch(one)

    def _concerned(self) -> dict[InstanceId, EngineInstance]:
        """Return the instances on the GPUs concerned that have changed or have something to do."""
        state = self._state
        mask, everything = state.changed, (1 << len(state.gpus)) - 1
        for gpu, here in enumerate(state.gpus):
            if mask == everything:
                break
            if state.changed >> gpu & 1:
                mask |= state.resting.joined(gpu)
                for one in here.values():
                    if one.claim != "cold" or one.step is not None or one.activation is not None:
                        mask |= one.mask
        return {name: one for name, one in state.agenda.items() if one.mask & mask and name in state.moving}

    def _turn(self, one: EngineInstance, now: float) -> tuple[int, int]:
        oldest = one.oldest
        if oldest is None:
            return 3, 0
        if one.overdue(now, self._state.config.max_wait_s):
            return 0, oldest.order
        return (1 if one.ready else 2), oldest.order

    def _stop(self, one: EngineInstance, now: float) -> None:
        """Stop an engine that has to be, when its holders and its step have ended and nothing wakes up beside it."""
        state = self._state
        if not (one.stop_why or one.leaving) or one.step is not None:
            return
        if one.activation is not None:
            one.activation = None
            state.touch(one)
        if one.running or (one.stuck and not one.stop_why):
            return
        if one.stopped:
            self._left(one, now)
        elif not any(other.exclusive for other in state.steps_near(one)):
            state.begin(one, "stop", one.stop_why or one.leaving, now)

    def _left(self, one: EngineInstance, now: float) -> None:
        """Make an instance without an engine usable, with the present declaration of its service."""
        state = self._state
        one.leaving = one.stop_why = ""
        state.touch(one)
        spec = state.services.get(one.id.service)
        if spec is None:  # an engine that was given is not ours any more
            state.settle_place(one, "cold")
        else:
            spec = spec.of_degree(one.id.chunk.size)
        if spec is None or spec != one.spec:
            one.faults = one.deaths = one.failures = one.late = 0
            one.quarantine, one.probing = "", False
            one.spec = spec or one.spec
        if not one.quarantine:
            state.set_state(one, "cold", one.why, now)

    def _fence(self, one: EngineInstance, now: float) -> None:
        """Let an instance drain, run or be idle."""
        state = self._state
        if not one.running:
            one.drain_s = one.aborted_s = None
            if one.state in ("running", "draining"):
                state.set_state(one, "resident", "", now)
            return
        first = None if one.leaving else self._activations.ahead(one, state.overlapping(one), now)
        why = one.leaving or ("" if first is None else f"an overdue holder waits for {first.id}")
        if why and one.drain_s is None:
            one.drain_s = now
            state.set_state(one, "draining", why, now)
        elif not why and one.drain_s is not None:
            one.drain_s = one.aborted_s = None
            state.set_state(one, "running", "", now)

    def _probes(self, one: EngineInstance) -> bool:
        """Return whether a quarantined instance waits for the time of its probe, and not for a stop or a good GPU."""
        waits = bool(one.quarantine) and one.step is None and not one.stop_why
        return waits and not self._state.bad_reason(one.id)

    def _drained_by_s(self, one: EngineInstance) -> float:
        if one.drain_s is None:
            return inf
        config = self._state.config
        return one.drain_s + config.max_drain_s if one.aborted_s is None else one.aborted_s + config.abort_limit_s

    def _next_s(self, one: EngineInstance, now: float) -> float:
        """Time at which an instance needs a turn without a stimulus; infinity: never."""
        state = self._state
        at_s = self._drained_by_s(one)
        if one.step is not None:
            at_s = min(at_s, self._yields.next_s(one))
        elif one.running:
            at_s = min(at_s, check_due_s(one, state.config))
        elif one.waiting:
            at_s = min(at_s, self._cancellations.next_s(one, now))
        if one.state == "unknown" and one.step is None:
            at_s = min(at_s, one.found_by_s)
        if self._probes(one):
            at_s = min(at_s, one.probe_s)
        oldest = one.oldest
        if oldest is not None and not one.overdue(now, state.config.max_wait_s):
            at_s = min(at_s, oldest.arrived_s + state.config.max_wait_s)
            if one.activation is None and not one.ready:
                ends_s = [other.kept_until_s() for other in state.overlapping(one)]
                at_s = min(at_s, min([end_s for end_s in ends_s if end_s > now], default=inf))
        return at_s
