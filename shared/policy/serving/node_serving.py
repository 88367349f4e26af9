"""Model services of one node as a state machine: stimuli in, commands out (evict on execution, ARL-Tangram 5.3).

Laws. Each one is held by the model checker (all interleavings of small cases) and by random histories
(tests/shared/policy/serving/test_model_checker.py, test_serving_machine.py), and by the unit tests that are named:
  1. A holder is admitted at most once, to an instance of exactly its service and chunk that is resident and passed a
     canary, and at most `concurrency` at a time. At most one instance with holders uses a GPU. Each `Wanted` ends:
     admitted, refused with a reason (at its deadline at the latest), or ended by its caller (test_holders.py).
  2. Each instance has at most one step under way: fence, drain, evict, confirm, load or restore, canary, admit
     (test_activations.py). Steps of instances that share a GPU never overlap, except evictions and stops with each
     other: they only free memory. A stop after a death waits for the load beside it (test_engines.py). No load,
     restore or canary runs, and no holder is admitted, beside holders or steps of another instance on its GPUs.
  3. No step begins with which the memory that engines may use exceeds a device or the host budget. Memory is counted
     from before the step that takes it until after the step that is confirmed to free it (`instance`). Victims and
     levels: `evictions`.
  4. An instance with holders, or waiting ones, or restored less than `min_residency_s` ago, is no victim, unless the
     holder for which room is made has waited for `max_wait_s`. Then it drains first (test_turns.py).
  5. Out of memory: engines that died are stopped and the step is tried again. Without one, the next LRU instance is
     evicted and the step is tried again, once; then quarantine. A failed restore or canary: stop, load once more; then
     quarantine. A failed load, or `most_deaths` deaths without a successful holder between them: quarantine. A probe
     follows by itself (test_engines.py).
  6. After a restart nothing is admitted to an instance, or to one that shares a GPU with it, before its residency was
     found or it was stopped. A found resident engine passes a canary before its first holder (test_restart.py).
  7. A bad GPU: engines on it are stopped, and holders refused, until it is good (test_changes.py).
  8. Engines of a removed or changed service are drained and stopped; of a removed one nothing stays (test_changes.py).
  9. An idle instance stays resident until its memory is needed. `view` changes nothing (test_turns.py).
  10. An engine that answers none of its holders for `hung_after_s` is read, and treated as dead if it hangs
     (`liveness`).
  11. A load or restore is cancelled while others wait for its GPUs, if nobody waits for it or it is late
     (`cancellations`). One that is late offers its GPUs to the services that wait at the leader (`yields`).
A stimulus costs what `Turns.settle` costs: it depends on the instances of the GPUs concerned that are not at rest
(`resting`), with one look at each of the node that has something to do, and not on all instances. `ServiceSet`,
`ServiceRemoved` and a GPU that is good again cost O(instances). A plan that gives up sleepers also costs O(those on its
GPUs), and for their host memory O(sleepers of the node).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared.policy.serving import model
from shared.policy.serving.activations import Activations
from shared.policy.serving.cancellations import StepCancellations
from shared.policy.serving.config import ServingConfig
from shared.policy.serving.engine_steps import EngineSteps
from shared.policy.serving.holder_queue import HolderQueue
from shared.policy.serving.instance import EngineInstance
from shared.policy.serving.liveness import LivenessChecks
from shared.policy.serving.model import Command, NodeMemory, Stimulus
from shared.policy.serving.node_state import NodeState
from shared.policy.serving.node_view import InstanceView, view_of
from shared.policy.serving.step_times import StepTimes
from shared.policy.serving.turns import Turns
from shared.policy.serving.yields import StepYields


class NodeServing:
    """All instances of one node."""

    def __init__(self, memory: NodeMemory, config: ServingConfig | None = None) -> None:
        config = config or ServingConfig()
        self._state = NodeState(config, memory, StepTimes(config), gpus=[{} for _ in memory.device_gb])
        self._queue = HolderQueue(self._state)
        self._engines = EngineSteps(self._state, self._queue)
        self._cancellations = StepCancellations(self._state, self._engines)
        self._activations = Activations(self._state, self._queue, self._engines, self._cancellations)
        self._liveness = LivenessChecks(self._state, self._engines)
        self._turns = Turns(
            self._state,
            self._queue,
            self._engines,
            self._activations,
            self._cancellations,
            self._liveness,
            StepYields(self._state, self._queue),
        )
        self._handlers: dict[type[Any], Callable[[float, Any], None]] = {
            model.ServiceSet: self._service_set,
            model.ServiceRemoved: self._service_removed,
            model.Wanted: self._queue.wanted,
            model.HolderEnded: self._queue.ended,
            model.Stepped: self._stepped,
            model.EngineDied: self._engines.died,
            model.LivenessChecked: self._liveness.checked,
            model.Expected: self._engines.expected,
            model.Found: self._engines.found,
            model.DeviceMarked: self._device_marked,
            model.TimePassed: self._ticked,
        }

    def handle(self, now: float, stimulus: Stimulus) -> list[Command]:
        """Handle what is due by time, and then a stimulus. `now` never decreases.

        Stimuli about unknown holders, instances or steps change nothing: each may be late or repeated.
        """
        self._expire(now)
        self._handlers[type(stimulus)](now, stimulus)
        self._turns.settle(now)
        self._expire(now)  # a time may have come while a step was under way
        commands, self._state.commands = self._state.commands, []
        return commands

    def next_wake_s(self) -> float:
        """Return the time at which `TimePassed` is needed; infinity: never. O(1), amortised."""
        return self._state.timers.first_s()

    def view(self) -> list[InstanceView]:
        """Return each instance, by service and chunk. It changes nothing. O(instances log instances)."""
        return view_of(self._state)

    def ready_in_s(self, now: float, instance: model.InstanceId) -> float:
        """Return the expected time until an instance is resident; 0: it is, or is not known. O(evictions for it)."""
        one = self._state.instances.get(instance)
        return 0.0 if one is None or one.ready else self._queue.ready_in_s(one, now)

    def _expire(self, now: float) -> None:
        """Handle all times that have come."""
        if self._state.timers.first_s() > now:
            return
        while (key := self._state.timers.pop_due(now)) is not None:
            if isinstance(key, str):
                self._queue.expire(key, now)
            else:
                self._turns.due(self._state.instances[key], now)
        self._turns.settle(now)

    def _ticked(self, _: float, __: model.TimePassed) -> None:
        """What is due was handled before."""

    def _stepped(self, now: float, stepped: model.Stepped) -> None:
        one = self._state.instances.get(stepped.instance)
        if one is None or one.step != stepped.step:
            return
        one.step = None
        self._state.touch(one)
        if stepped.step == "evict":
            self._engines.evicted(one, stepped, now)
        elif stepped.step == "stop":
            self._engines.stopped(one, stepped, now)
        else:
            self._activations.stepped(one, stepped, now)

    def _service_set(self, now: float, change: model.ServiceSet) -> None:
        declared = change.spec
        self._state.services[declared.name] = declared
        self._state.times.declare(declared.name, declared.load_s)
        for one in self._state.of_service(declared.name):
            spec = declared.of_degree(one.id.chunk.size)
            if one.state == "unknown":
                one.spec = spec
                self._state.count_unknown(one)
            elif one.spec.same_engine(spec) and one.id.chunk.size in spec.degrees:
                one.spec = spec
            else:
                self._leave(one, "its service was changed")
            refusal = self._queue.refusal(one.id, now)
            if refusal is not None:
                self._queue.refuse_waiting(one, *refusal)
            self._state.touch(one)

    def _service_removed(self, _: float, change: model.ServiceRemoved) -> None:
        if self._state.services.pop(change.name, None) is None:
            return
        for one in self._state.of_service(change.name):
            self._queue.refuse_waiting(one, f"the service {change.name!r} was removed", None)
            self._leave(one, "its service was removed")
        self._state.times.forget(change.name)

    def _device_marked(self, _: float, marked: model.DeviceMarked) -> None:
        state, gpu = self._state, marked.gpu
        if not 0 <= gpu < len(state.gpus):
            return
        state.changed |= 1 << gpu
        if marked.good:
            state.bad.pop(gpu, None)
            for one in state.instances.values():  # the probes of quarantined ones wait for it
                if (one.quarantine or one.probing) and gpu in one.id.chunk.gpus:
                    state.touch(one)
            return
        state.bad[gpu] = marked.reason
        for one in state.active_on(gpu):
            reason = state.bad_reason(one.id)
            self._queue.refuse_running(one, reason, state.config.bad_device_retry_s)
            self._queue.refuse_waiting(one, reason, state.config.bad_device_retry_s)
            self._leave(one, reason)

    def _leave(self, one: EngineInstance, reason: str) -> None:
        one.leaving = reason
        self._state.touch(one)
