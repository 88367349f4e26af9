"""The router's state machine: stimuli in, commands out. It decides which worker gets which model call, and when.

Laws (tests/shared/policy/routing/test_router_machine.py):
  - each call that arrives is sent once, or refused, or ended by its replica, until it arrives again;
  - no worker has more calls in flight than its cap, and none begins on one that is not ready;
  - calls of a trajectory stay on their worker while it is usable and has not failed that call;
  - a waiting call whose worker leaves gets another one at once, in its old order, or is refused;
  - a repeated or late stimulus changes nothing.
A stimulus about one call costs O(log calls), and O(workers) if its trajectory has no usable worker. The loss of a
worker costs O(its waiting calls).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from shared.policy.routing import model
from shared.policy.routing.config import RoutingConfig
from shared.policy.routing.group_lengths import GroupLengths
from shared.policy.routing.health import WorkerHealth
from shared.policy.routing.keyed_heap import KeyedHeap
from shared.policy.routing.known_calls import KnownCall, KnownCalls
from shared.policy.routing.members import CandidateLoads, Member, WorkerActivity, serves, why_none
from shared.policy.routing.model import Command, ModelCall, Pin, Refuse, Send, Stimulus
from shared.policy.routing.pins import Pins
from shared.policy.routing.placement import StickyLeastLoaded, WorkerPlacement
from shared.policy.routing.worker_queue import WorkerQueue


class Router:
    """State of all workers, calls and pins."""

    def __init__(self, config: RoutingConfig | None = None, placement: WorkerPlacement | None = None) -> None:
        self.config = config or RoutingConfig()
        self._placement = placement or StickyLeastLoaded()
        self._members: dict[str, Member] = {}
        self._calls = KnownCalls()
        self._pins = Pins(self.config.pin_idle_s, self.config.most_pins)
        self._lengths = GroupLengths()
        self._due: KeyedHeap[float] = KeyedHeap()
        """Workers by the time at which they need a tick."""
        self._commands: list[Command] = []
        self._handlers: dict[type[Any], Callable[[float, Any], None]] = {
            model.WorkerSet: self._worker_set,
            model.WorkerDrained: self._worker_drained,
            model.WorkerRemoved: self._worker_removed,
            model.CallArrived: self._call_arrived,
            model.CallProgressed: self._call_progressed,
            model.CallEnded: self._call_ended,
            model.TrajectoryEnded: self._trajectory_ended,
            model.PinRestored: self._pin_restored,
            model.CallRestored: self._call_restored,
            model.CanaryAnswered: self._canary_answered,
            model.ReplicaLost: self._replica_lost,
            model.Ticked: self._ticked,
        }

    def handle(self, now: float, *stimuli: Stimulus) -> list[Command]:
        """Handle stimuli in their order. `now` never decreases."""
        for stimulus in stimuli:
            self._handlers[type(stimulus)](now, stimulus)
        commands, self._commands = self._commands, []
        return commands

    def due(self) -> float:
        """Return the time at which `Ticked` is needed; infinity: never. O(1), amortised."""
        first = self._due.first()
        return min(self._calls.due_s(), inf if first is None else first[0], self._pins.due_s())

    def replicas(self) -> set[str]:
        """Return the replicas that have calls."""
        return self._calls.replicas()

    def calls_of(self, replica: str) -> set[str]:
        """Return the calls of a replica, waiting and in flight."""
        return self._calls.of_replica(replica)

    def worker_of(self, call: str) -> str | None:
        """Return the worker to which a call was sent; None: it was not sent, or has ended."""
        known = self._calls.get(call)
        return known.worker if known is not None and known.sent else None

    def activities(self, now: float) -> list[WorkerActivity]:
        """Return what each worker does. O(workers)."""
        return [one.activity(self._pins.counts.get(name, 0), now) for name, one in self._members.items()]

    # ---- workers -------------------------------------------------------------------------------------------------

    def _worker_set(self, now: float, change: model.WorkerSet) -> None:
        worker = change.worker
        one = self._members.get(worker.id)
        if one is None:
            queue = WorkerQueue(self.config.kv_idle_s, worker.most_calls, worker.kv_tokens)
            one = self._members[worker.id] = Member(worker, queue, WorkerHealth(self.config.health))
            self._placement.add(worker.id)
            self._commands.append(model.WorkerChanged(worker.id, "ready", "it was registered"))
            for known in [known for known in self._calls if known.sent and known.worker == worker.id]:
                self._restore(one, known, now)  # it was removed before, and these go on
        elif change.restarted:
            one.health = WorkerHealth(self.config.health, running=len(one.queue.running), progress_s=now)
        served, one.worker, one.health.drained = one.worker.models, worker, False
        one.queue.most_calls, one.queue.kv_tokens = worker.most_calls, worker.kv_tokens
        if served != worker.models:
            self._move(one.queue.take_waiting(now), now)
        self._settle(one, now)

    def _worker_drained(self, now: float, change: model.WorkerDrained) -> None:
        one = self._members.get(change.worker)
        if one is not None:
            one.health.drained = True
            self._settle(one, now)

    def _worker_removed(self, now: float, change: model.WorkerRemoved) -> None:
        one = self._members.pop(change.worker, None)
        if one is None:
            return
        self._placement.remove(change.worker)
        self._due.discard(change.worker)
        self._move(one.queue.take_waiting(now), now)

    def _settle(self, one: Member, now: float) -> None:
        """Let a worker's calls begin, or leave it, after a change; report its state, and note when it is due."""
        state = one.health.state(now)
        if state not in ("ready", "probing"):
            self._move(one.queue.take_waiting(now), now)
        while one.queue.waiting and one.health.may_start(now):
            call = one.queue.start(now)
            if call is None:
                break
            known = self._calls[call]
            self._calls.send(known, one.worker.id)
            one.health.started(call, now)
            self._commands.append(Send(call, known.call.replica, one.worker.id))
        if state != one.state:
            one.state = state
            self._commands.append(model.WorkerChanged(one.worker.id, state, one.health.reason))
            if state == "failed":
                for call in one.queue.running:
                    self._commands.append(model.Recall(call, self._calls[call].call.replica))
        due_s = min(one.health.due_s(), one.queue.next_lapse_s())
        if due_s < inf:
            self._due.set(one.worker.id, due_s)
        else:
            self._due.discard(one.worker.id)

    def _move(self, calls: list[str], now: float) -> None:
        """Place waiting calls again, in their order."""
        for call in calls:
            known = self._calls[call]
            if known.call.trajectory:
                self._pins.ended(known.call.trajectory, known.pin, None, now)
            known.worker = ""
            self._place(known, now)

    # ---- calls ---------------------------------------------------------------------------------------------------

    def _call_arrived(self, now: float, arrived: model.CallArrived) -> None:
        call = arrived.call
        if call.id in self._calls:
            return
        self._place(self._calls.add(call, now), now)

    def _place(self, known: KnownCall, now: float) -> None:
        """Put a call into the queue of a worker, or refuse it."""
        call = known.call
        pinned = self._pins.worker(call.trajectory) if call.trajectory else ""
        loads = CandidateLoads(self._members, call, self._pins, now)
        if pinned not in loads and not loads:
            serving = [one for one in self._members.values() if serves(one, call)]
            if call.tries > len(serving) + self.config.most_repeats or not loads.with_avoided():
                self._refuse_unserved(call, serving, now)
                return
        tokens = self._lengths.expected(call.tenant, call.group, call.most_tokens, call.context_tokens)
        chosen = self._placement.place(call, tokens, pinned, loads)
        one = self._members[chosen]
        if call.trajectory:
            self._pin(known, chosen, pinned, now)
        self._calls.wait(known, chosen)
        one.queue.push(call.id, known.holder, tokens, known.order, now)
        self._settle(one, now)
        if not known.sent and self._calls.waiting > self.config.most_waiting and call.id in self._calls:
            one.queue.discard(call.id, now)
            why = f"{self.config.most_waiting} calls wait for workers"
            self._refuse(call, "queue-full", why, self.config.retry_s, now)

    def _pin(self, known: KnownCall, worker: str, before: str, now: float) -> None:
        call, holder = known.call, known.holder
        moved = self._pins.pin(call.trajectory, worker, call.tenant, call.group)
        known.pin = self._pins.began(call.trajectory)
        if not moved:
            return
        self._commands.append(Pin(call.trajectory, worker))
        former, one = self._members.get(before), self._members[worker]
        if former is not None:  # its other waiting calls follow, if the worker serves them
            waiting = [self._calls[name] for name in former.queue.waiting_of(holder)]
            follow = [each for each in waiting if serves(one, each.call) and worker not in each.call.avoid]
            for each in follow:
                former.queue.discard(each.call.id, now)
            former.queue.release(holder)
            self._move([each.call.id for each in sorted(follow, key=lambda each: each.order)], now)

    def _refuse_unserved(self, call: ModelCall, serving: list[Member], now: float) -> None:
        """Refuse a call that no worker may get."""
        if not self._members:
            self._refuse(call, "no-worker", "there is no worker: register one with POST /workers", 1.0, now)
        elif not serving:
            self._refuse(call, "no-model", "no worker serves it; GET /v1/models lists those that are served", None, now)
        else:
            after_s = min(one.health.retry_at_s(now) for one in serving) - now
            retry_s = self.config.retry_s if after_s == inf else max(self.config.retry_s, after_s)
            self._refuse(call, "no-worker", why_none(serving, now), retry_s, now)

    def _refuse(self, call: ModelCall, code: Any, reason: str, retry_after_s: float | None, now: float) -> None:
        self._commands.append(Refuse(call.id, call.replica, code, reason, retry_after_s))
        self._forget(call.id, None, now)

    def _forget(self, call: str, tokens: int | None, now: float) -> KnownCall | None:
        """Remove a call that is in no queue any more."""
        known = self._calls.remove(call)
        if known is None:
            return None
        if known.worker and known.call.trajectory:
            self._pins.ended(known.call.trajectory, known.pin, tokens, now)
        return known

    def _call_progressed(self, now: float, progressed: model.CallProgressed) -> None:
        known = self._calls.get(progressed.call)
        one = None if known is None or not known.sent else self._members.get(known.worker)
        if one is not None:
            one.health.progressed(now)
            self._settle(one, now)

    def _call_ended(self, now: float, ended: model.CallEnded) -> None:
        one = self._end(now, ended)
        if one is not None:
            self._settle(one, now)

    def _end(self, now: float, ended: model.CallEnded) -> Member | None:
        """Remove a call. Return its worker, whose other calls may begin."""
        known = self._calls.get(ended.call)
        if known is None:
            return None
        one = self._members.get(known.worker)
        if one is not None:
            if ended.held_tokens:
                one.queue.grow(known.holder, ended.held_tokens)
            if one.queue.end(ended.call, now, keep=True):
                one.health.ended(ended.call, ended.outcome, now)
            else:
                one.queue.discard(ended.call, now)
        self._forget(ended.call, ended.held_tokens or known.call.context_tokens, now)
        return one

    def _call_restored(self, now: float, restored: model.CallRestored) -> None:
        call, one = restored.call, self._members.get(restored.worker)
        if call.id in self._calls:
            return
        known = self._calls.add(call, now)
        self._calls.send(known, restored.worker)
        if one is None:  # its worker was removed, and may be registered again before the call ends
            if self._pins.worker(call.trajectory):
                known.pin = self._pins.began(call.trajectory)
            return
        if call.trajectory:
            self._pin(known, restored.worker, "", now)
        self._restore(one, known, now)
        self._settle(one, now)

    def _restore(self, one: Member, known: KnownCall, now: float) -> None:
        """Add a call that is in flight to its worker."""
        call = known.call
        tokens = self._lengths.expected(call.tenant, call.group, call.most_tokens, call.context_tokens)
        one.queue.restore(call.id, known.holder, tokens, now)
        one.health.started(call.id, now)

    # ---- trajectories, replicas, time ----------------------------------------------------------------------------

    def _trajectory_ended(self, now: float, ended: model.TrajectoryEnded) -> None:
        known = self._pins.remove(ended.trajectory)
        if known is None:
            return
        self._lengths.record(known.tenant, known.group, known.tokens)
        self._commands.append(Pin(ended.trajectory, ""))
        one = self._members.get(known.worker)
        if one is not None:
            one.queue.release((ended.trajectory, ""))
            self._settle(one, now)

    def _pin_restored(self, now: float, restored: model.PinRestored) -> None:
        self._pins.restore(restored.trajectory, restored.worker, min(now, restored.at_s))

    def _canary_answered(self, now: float, answered: model.CanaryAnswered) -> None:
        one = self._members.get(answered.worker)
        if one is not None:
            one.health.canary_answered(ok=answered.ok, now=now)
            self._settle(one, now)

    def _replica_lost(self, now: float, lost: model.ReplicaLost) -> None:
        ended = [self._end(now, model.CallEnded(call, "aborted")) for call in sorted(self.calls_of(lost.replica))]
        for one in {one.worker.id: one for one in ended if one is not None}.values():
            self._settle(one, now)  # after all ends, or one of these calls would begin

    def _ticked(self, now: float, _: model.Ticked) -> None:
        while (known := self._calls.late(now)) is not None:
            one = self._members[known.worker]
            one.queue.discard(known.call.id, now)
            self._refuse(known.call, "late", "its deadline passed while it waited for a worker", None, now)
            self._settle(one, now)
        while (due := self._due.first()) is not None and due[0] <= now:
            one = self._members[due[1]]
            self._due.discard(due[1])
            if one.health.tick(now):
                self._commands.append(model.Canary(due[1]))
            one.queue.lapse(now)
            self._settle(one, now)
        self._commands += [Pin(trajectory, "") for trajectory in self._pins.lapsed(now)]

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        self._pins.check()
        self._calls.check()
        for name, one in self._members.items():
            one.queue.check()
            one.health.check()
            assert one.health.running == len(one.queue.running)
            sent = dict.fromkeys(one.queue.running, True) | dict.fromkeys(one.queue.waiting_calls(), False)
            assert sent == {known.call.id: known.sent for known in self._calls if known.worker == name}
