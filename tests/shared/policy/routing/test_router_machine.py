"""Random histories of the router against what its clients and workers see: the commands alone, and no state of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from shared.policy.routing.config import HealthConfig, RoutingConfig
from shared.policy.routing.model import (
    CallArrived,
    CallEnded,
    CallProgressed,
    CallRestored,
    Canary,
    CanaryAnswered,
    Command,
    ModelCall,
    Pin,
    PinRestored,
    Recall,
    Refuse,
    ReplicaLost,
    Send,
    Stimulus,
    Ticked,
    TrajectoryEnded,
    Worker,
    WorkerChanged,
    WorkerDrained,
    WorkerRemoved,
    WorkerSet,
)
from shared.policy.routing.router import Router

CONFIG = RoutingConfig(
    most_waiting=8,
    kv_idle_s=10.0,
    pin_idle_s=60.0,
    health=HealthConfig(stall_s=5.0, canary_s=3.0, most_failures=2, first_open_s=4.0),
)
WORKERS = st.sampled_from(["w1", "w2", "w3"])
TRAJECTORIES = st.sampled_from(["", "t1", "t2", "t3", "t4"])
REPLICAS = st.sampled_from(["r1", "r2"])
MODELS = st.sampled_from(["", "", "m1", "m2"])


@dataclass
class Seen:
    """What a mesh around the router sees."""

    workers: dict[str, Worker] = field(default_factory=dict)
    state: dict[str, str] = field(default_factory=dict)
    pins: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, ModelCall] = field(default_factory=dict)
    """In the order of their arrival."""
    running: dict[str, tuple[ModelCall, str]] = field(default_factory=dict)
    canaries: dict[str, float] = field(default_factory=dict)
    """Worker -> time of its canary that was not answered."""

    def apply(self, command: Command, now: float) -> None:
        match command:
            case Send(call, replica, worker):
                assert call in self.waiting, "sent although it does not wait"
                sent = self.waiting.pop(call)
                assert replica == sent.replica
                assert self.state[worker] in ("ready", "probing"), f"sent to a worker that is {self.state[worker]}"
                serves = self.workers[worker].models
                assert not sent.model or not serves or sent.model in serves
                self.running[call] = sent, worker
                cap = self.workers[worker].most_calls
                used = sum(1 for _, other in self.running.values() if other == worker)
                assert cap is None or used <= cap, "more calls than the cap"
                if sent.trajectory and call not in self.unpinned:
                    assert self.pins[sent.trajectory] == worker, "sent elsewhere than to its pin"
            case Refuse(call, replica, code, reason, retry_s):
                assert self.waiting.pop(call).replica == replica, "refused although it does not wait"
                assert reason
                assert code in ("no-model", "late") or (retry_s or 0) > 0
            case Pin(trajectory, worker):
                if worker:
                    self.pins[trajectory] = worker
                else:
                    self.pins.pop(trajectory, None)
            case WorkerChanged(worker, state, _):
                self.state[worker] = state
            case Canary(worker):
                late_s = self.canaries.get(worker, -1e9) + CONFIG.health.canary_s
                assert now >= late_s, "one canary at a time"
                self.canaries[worker] = now
            case Recall(call, replica):
                assert self.running[call][0].replica == replica

    def check(self) -> None:
        """Nothing waits where it could begin."""
        for call in self.waiting.values():
            if call.id in self.unpinned:
                continue
            usable = [
                name
                for name, worker in self.workers.items()
                if self.state[name] == "ready"
                and worker.most_calls is None
                and worker.kv_tokens is None
                and (not call.model or not worker.models or call.model in worker.models)
            ]
            pinned = self.pins.get(call.trajectory, "")
            assert not pinned or pinned in self.workers, "it waits for a worker that is gone"
            assert not usable or pinned not in usable or self.paused(pinned), "it waits for a worker without bounds"

    def paused(self, worker: str) -> bool:
        return worker in self.pushed_back

    unpinned: set[str] = field(default_factory=set)
    """Calls that waited when their trajectory ended. Their replicas end them soon."""
    pushed_back: set[str] = field(default_factory=set)
    """Workers that have asked for a pause since time has passed."""


class RouterMachine(RuleBasedStateMachine):
    """Histories of calls, workers, replicas and leaders."""

    @initialize()
    def begin(self) -> None:
        self.router, self.seen, self.now, self.serial = Router(CONFIG), Seen(), 0.0, 0

    def handle(self, *stimuli: Stimulus) -> list[Command]:
        commands = self.router.handle(self.now, *stimuli)
        for command in commands:
            self.seen.apply(command, self.now)
        self.router.check()
        self.seen.check()
        assert set(self.seen.waiting) | set(self.seen.running) >= {
            call for replica in self.router.replicas() for call in self.router.calls_of(replica)
        }
        for call, (_, worker) in self.seen.running.items():
            assert self.router.worker_of(call) in (worker, None)
        return commands

    # ---- workers ----

    @rule(
        name=WORKERS,
        most=st.none() | st.integers(1, 2),
        kv=st.none() | st.just(100),
        models=st.sampled_from([(), ("m1",), ("m1", "m2")]),
        restarted=st.booleans(),
    )
    def set_worker(self, name: str, most: int | None, kv: int | None, models: tuple[str, ...], restarted: bool) -> None:
        used = sum(1 for _, worker in self.seen.running.values() if worker == name)
        most = None if most is None else max(most, used)  # a cap that was lowered below what runs is no fault
        worker = Worker(name, frozenset(models), most, kv)
        for call, (one, other) in list(self.seen.running.items()):
            if other == name and one.model and models and one.model not in models:
                self.end_call(call, "ok")
        self.seen.workers[name] = worker
        if restarted:
            self.seen.canaries.pop(name, None)
            self.seen.pushed_back.discard(name)
        self.handle(WorkerSet(worker, restarted=restarted))
        assert self.seen.state[name] != "draining"

    @precondition(lambda self: self.seen.workers)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.seen.workers)))
        self.handle(WorkerDrained(name))
        assert all(self.seen.pins.get(call.trajectory) != name for call in self.seen.waiting.values())

    @precondition(lambda self: self.seen.workers)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.seen.workers)))
        del self.seen.workers[name]
        self.seen.canaries.pop(name, None)
        self.handle(WorkerRemoved(name))

    # ---- calls ----

    @rule(
        trajectory=TRAJECTORIES,
        replica=REPLICAS,
        model=MODELS,
        priority=st.sampled_from([0.0, -1.0, 5.0]),
        tokens=st.sampled_from([10, 60, 200]),
        wait_s=st.sampled_from([3.0, 1e9]),
    )
    def arrive(self, trajectory: str, replica: str, model: str, priority: float, tokens: int, wait_s: float) -> None:
        self.serial += 1
        call = ModelCall(
            f"c{self.serial}", replica, trajectory, "t", "g", model, priority, tokens, None, self.now + wait_s
        )
        pinned = self.seen.pins.get(trajectory, "")
        usable = bool(pinned) and self.seen.state.get(pinned) == "ready" and pinned in self.seen.workers
        serves = usable and (
            not model or not self.seen.workers[pinned].models or model in self.seen.workers[pinned].models
        )
        self.seen.waiting[call.id] = call
        commands = self.handle(CallArrived(call))
        if call.id in self.seen.waiting or call.id in self.seen.running:
            assert self.handle(CallArrived(call)) == [], "a repeated arrival"
        full = any(isinstance(one, Refuse) and one.code == "queue-full" for one in commands)
        if serves and trajectory and not full:
            assert self.seen.pins[trajectory] == pinned, "it leaves a worker that it could use"

    @precondition(lambda self: self.seen.running)
    @rule(data=st.data(), outcome=st.sampled_from(["ok", "ok", "aborted", "failed"]))
    def end(self, data: st.DataObject, outcome: str) -> None:
        self.end_call(data.draw(st.sampled_from(sorted(self.seen.running))), outcome)

    def end_call(self, call: str, outcome: str) -> None:
        del self.seen.running[call]
        ended = CallEnded(call, outcome, 40)  # type: ignore[arg-type]
        self.handle(ended, ended)

    @precondition(lambda self: self.seen.running)
    @rule(data=st.data(), outcome=st.sampled_from(["unreachable", "overloaded"]))
    def fail(self, data: st.DataObject, outcome: str) -> None:
        """A worker fails a call before its first byte, and its replica places it again."""
        name = data.draw(st.sampled_from(sorted(self.seen.running)))
        call, worker = self.seen.running.pop(name)
        if outcome == "overloaded":
            self.seen.pushed_back.add(worker)
        others = [
            other
            for other, known in self.seen.workers.items()
            if other not in call.avoid | {worker}
            and self.seen.state[other] == "ready"
            and (not call.model or not known.models or call.model in known.models)
        ]
        again = ModelCall(
            call.id, call.replica, call.trajectory, call.tenant, call.group, call.model, call.priority,
            call.context_tokens, None, call.deadline_s, call.avoid | {worker}, call.tries + 1,
        )  # fmt: skip
        self.handle(CallEnded(name, outcome))  # type: ignore[arg-type]
        self.seen.waiting[name] = again
        commands = self.handle(CallArrived(again))
        refused = [one for one in commands if isinstance(one, Refuse) and one.call == name]
        if name in self.seen.running and others:
            assert self.seen.running[name][1] not in again.avoid, "it came back although another was ready"
        assert not refused or not others or refused[0].code == "queue-full"

    @precondition(lambda self: self.seen.waiting)
    @rule(data=st.data())
    def abort_waiting(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.seen.waiting)))
        del self.seen.waiting[name]
        self.handle(CallEnded(name, "aborted"))

    @precondition(lambda self: self.seen.running)
    @rule(data=st.data())
    def progress(self, data: st.DataObject) -> None:
        self.handle(CallProgressed(data.draw(st.sampled_from(sorted(self.seen.running)))))

    @rule(trajectory=TRAJECTORIES)
    def end_trajectory(self, trajectory: str) -> None:
        self.seen.unpinned |= {call.id for call in self.seen.waiting.values() if trajectory == call.trajectory != ""}
        self.handle(TrajectoryEnded(trajectory))
        assert trajectory not in self.seen.pins

    # ---- time, canaries, replicas, leaders ----

    @rule(pause_s=st.sampled_from([0.5, 3.0, 8.0, 70.0]))
    def wait(self, pause_s: float) -> None:
        """Time passes, and the timer of the service is set to what the router asks for."""
        end_s = self.now + pause_s
        while (due_s := self.router.due()) <= end_s:
            assert due_s >= self.now - 1e-9 or due_s == self.router.due()
            self.now = max(self.now, due_s)
            self.tick()
            assert self.router.due() > self.now, "time would not pass"
        self.now = end_s
        self.tick()
        self.seen.pushed_back.clear() if pause_s > 5 else None

    def tick(self) -> None:
        self.handle(Ticked())
        assert all(call.deadline_s > self.now for call in self.seen.waiting.values())

    @precondition(lambda self: self.seen.canaries)
    @rule(data=st.data(), ok=st.booleans())
    def answer_canary(self, data: st.DataObject, ok: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.seen.canaries)))
        self.seen.canaries.pop(name, None)
        self.handle(CanaryAnswered(name, ok))
        if ok:
            assert self.seen.state[name] != "failed"

    @rule(replica=REPLICAS)
    def lose_replica(self, replica: str) -> None:
        self.seen.waiting = {name: one for name, one in self.seen.waiting.items() if one.replica != replica}
        self.seen.running = {name: one for name, one in self.seen.running.items() if one[0].replica != replica}
        self.handle(ReplicaLost(replica))
        assert not self.router.calls_of(replica)

    @rule()
    def take_over(self) -> None:
        """A new leader reads workers, pins and calls in flight. Then the waiting calls arrive again."""
        drained = [name for name, state in self.seen.state.items() if state == "draining"]
        self.router = Router(CONFIG)
        self.seen.canaries.clear()
        known: list[Stimulus] = [WorkerSet(worker) for worker in self.seen.workers.values()]
        known += [WorkerDrained(name) for name in drained if name in self.seen.workers]
        known += [PinRestored(name, worker, self.now) for name, worker in self.seen.pins.items()]
        running = [CallRestored(call, worker) for call, worker in self.seen.running.values()]
        self.handle(*known, *running)
        counts = Counter(worker for _, worker in self.seen.running.values())
        for one in self.router.activities(self.now):
            assert one.in_flight == counts[one.worker]
        self.handle(*(CallArrived(call) for call in list(self.seen.waiting.values())))

    def teardown(self) -> None:
        """If the workers answer, no call waits for good."""
        if not hasattr(self, "router"):
            return
        for _ in range(200):
            for name in list(self.seen.running):
                if name in self.seen.running:
                    self.end_call(name, "ok")
            for name in list(self.seen.canaries):
                self.seen.canaries.pop(name, None)
                self.handle(CanaryAnswered(name, True))
            if not self.seen.waiting:
                break
            self.now += 11.0
            self.tick()
        assert not self.seen.waiting, "a call has starved"


RouterMachine.TestCase.settings = settings(max_examples=400, stateful_step_count=50, deadline=None)
TestRouter = RouterMachine.TestCase
