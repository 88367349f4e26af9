"""Activations: the steps that make an instance resident, one instance at a time on each GPU.

Order: room (other instances fall asleep or are stopped), load or restore, canary, admission. The next step begins when
the end of the one before is confirmed. An activation owns the GPUs of its chunk: nothing else begins a load, restore or
canary there, and no other instance admits a holder. Evictions for one activation run at the same time: each only frees
memory. A step of another instance that shares a GPU with a victim excludes the victim.

The plan is made anew when all evictions of the last plan have ended, so it is about confirmed memory. Each plan evicts
or stops something on GPUs where nothing else can wake up, so that plans end. An activation that has no plan gives up
its GPUs and waits again: two activations never wait for each other (tests/.../model_checker.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from shared.policy.serving.cancellations import StepCancellations
from shared.policy.serving.engine_steps import EngineSteps
from shared.policy.serving.evictions import (
    ROUNDING,
    Candidate,
    EvictionPlan,
    LevelOption,
    SleepingEngine,
    choose_levels,
    choose_victims,
    shared_gpus,
)
from shared.policy.serving.holder_queue import HolderQueue
from shared.policy.serving.instance import Activation, EngineInstance
from shared.policy.serving.model import InstanceId, Level, Stepped
from shared.policy.serving.node_state import NodeState

MOST_FAULTS = 2
"""Failed restores or canaries that quarantine: after the first one the engine is loaded once more."""


class Activations:
    """Activations of one node. A method is O(instances on the GPUs concerned that are not at rest) if it names no other
    cost.
    """

    def __init__(
        self, state: NodeState, queue: HolderQueue, engines: EngineSteps, cancellations: StepCancellations
    ) -> None:
        self._state = state
        self._queue = queue
        self._engines = engines
        self._cancellations = cancellations

    # ---- progress ------------------------------------------------------------------------------------------------

    def advance(self, one: EngineInstance, now: float) -> None:
        """Do what is next for an instance: admit its holders, begin its activation, or go on with it."""
        if one.step is not None or one.leaving or one.stop_why or one.quarantine or one.state == "unknown":
            return
        if one.activation is not None:
            if not one.activation.room and not self._state.steps_near(one):
                self._proceed(one, now)
        elif one.ready:
            has_room = one.waiting and len(one.running) < one.spec.concurrency
            if has_room and self._may_use(one, self._state.overlapping(one), now):
                self._queue.admit(one, now)
        elif one.suspect:
            return  # until its holders have ended
        elif (one.waiting or one.probing) and not self._state.bad_reason(one.id):
            others = self._state.overlapping(one)
            if self._may_use(one, others, now):
                self._begin(one, others, now)

    def ahead(self, one: EngineInstance, others: list[EngineInstance], now: float) -> EngineInstance | None:
        """Return the other instance whose overdue holder goes first; None if there is none, or this one is first."""
        config = self._state.config
        overdue, found = one.oldest if one.overdue(now, config.max_wait_s) else None, None
        for other in others:
            if not other.overdue(now, config.max_wait_s) or (oldest := other.oldest) is None:
                continue
            if overdue is None or oldest.order < overdue.order:
                overdue, found = oldest, other
        return found

    def _may_use(self, one: EngineInstance, others: list[EngineInstance], now: float) -> bool:
        """Return whether no other instance uses a GPU of the chunk, changes on it, or goes first."""
        for other in others:
            if other.running or other.step is not None or other.activation is not None or other.state == "unknown":
                return False
        return self.ahead(one, others, now) is None

    def _begin(self, one: EngineInstance, others: list[EngineInstance], now: float) -> None:
        plan = self._plan(one, others, now)
        if plan is None:
            self._refuse_impossible(one, now)
        elif one.waiting or not plan.levels:  # a probe alone evicts nothing
            one.activation = Activation()
            self._state.touch(one)
            self._execute(one, plan, now)

    def _proceed(self, one: EngineInstance, now: float) -> None:
        """Go on when all evictions of the last plan have ended."""
        half = one.claim != one.place  # a restore ran out of memory, and is tried again
        goes_on = one.waiting or one.probing or half
        plan = self._plan(one, self._state.overlapping(one), now) if goes_on else None
        if plan is None or (plan.levels and not one.waiting):
            one.activation = None
            if one.place != "awake":
                self._state.set_state(one, "cold" if one.place == "cold" else "evicted", one.why, now)
            self._state.touch(one)
        else:
            self._execute(one, plan, now)

    def _execute(self, one: EngineInstance, plan: EvictionPlan, now: float) -> None:
        """Begin the steps of a plan whose memory is free now, or the next step of the instance itself."""
        state, why = self._state, f"room for {one.id}"
        for name in plan.stopped:
            self._evict(one, name, "cold", f"host memory for sleeping engines: {why}", now)
        for name, level in plan.levels:
            host_gb = 0.0 if level == "cold" else state.instances[name].spec.host_gb.get(level, 0.0)
            if not host_gb or host_gb <= state.host_free_gb() + ROUNDING:
                self._evict(one, name, level, why, now)
        if not plan.levels:
            why = "a holder waits" if one.waiting else one.why
            state.begin(one, {"cold": "load", "awake": "canary"}.get(one.place, "restore"), why, now)  # type: ignore[arg-type]

    def _evict(self, one: EngineInstance, name: InstanceId, level: Level, why: str, now: float) -> None:
        victim = self._state.instances[name]
        assert one.activation is not None
        one.activation.room[name] = None
        victim.room_for = one.id
        if level == "cold":
            self._state.begin(victim, "stop", why, now)
        else:
            self._state.begin(victim, "evict", why, now, level)

    def _refuse_impossible(self, one: EngineInstance, now: float) -> None:
        """RefuseHolder holders for which there is too little memory until a stuck engine is stopped."""
        stuck = [other for other in self._state.overlapping(one) if other.stuck]
        for gpu in one.id.chunk.gpus:
            held = [other for other in stuck if gpu in other.id.chunk.gpus]
            if held and sum(other.device_gb for other in held) + one.spec.awake_gb > self._state.memory.device_gb[gpu]:
                why = (
                    f"GPU {gpu} has no memory for {one.id}: the engine of {held[0].id} holds it ({held[0].quarantine})"
                )
                retry_s = max(self._state.config.retry_s, min(other.probe_s for other in held) - now)
                self._queue.refuse_waiting(one, why, retry_s)
                return

    # ---- room ----------------------------------------------------------------------------------------------------

    def _plan(self, one: EngineInstance, others: list[EngineInstance], now: float) -> EvictionPlan | None:
        """Evictions after which the memory is enough; None if those that are possible now are not.

        Also O(instances of the node with something to do); if awake ones are not enough, O(sleepers on the GPUs); if
        host memory lacks, O(sleepers of the node). To that comes the search of `choose_levels`.
        """
        state = self._state
        needs = self._needs(one, others)
        if max(needs) <= ROUNDING:
            return EvictionPlan(())
        overdue = one.overdue(now, state.config.max_wait_s)
        victims = self._victims(needs, self._awake(one, others, now, overdue=overdue), one)
        if victims is None:  # sleepers are given up last, so all of them are spared if the others are enough
            victims = self._victims(needs, self._idle(one, others, now, overdue=overdue), one)
        if victims is None:
            return None
        plan = choose_levels(needs, victims, inf)
        if plan.host_gb and plan.host_gb > (free_gb := state.host_free_gb()) + ROUNDING:
            chosen = {victim.instance for victim in victims}
            sleepers = [sleeper for sleeper in self._sleepers(one) if sleeper.instance not in chosen]
            plan = choose_levels(needs, victims, free_gb, sleepers)
        return plan

    def _needs(self, one: EngineInstance, others: Iterable[EngineInstance]) -> list[float]:
        """Memory that an awake instance lacks, by GPU. `others`: those that overlap."""
        resting, have, gpus = self._state.resting, self._state.memory.device_gb, one.gpus
        needs = [one.spec.awake_gb + resting.device_gb(gpu) - have[gpu] for gpu in gpus]
        for other in others:
            gb = other.device_gb
            for gpu in other.gpus:
                if gpu in gpus:
                    needs[gpu - gpus[0]] += gb
        return needs

    def _awake(
        self, one: EngineInstance, others: Iterable[EngineInstance], now: float, *, overdue: bool
    ) -> list[EngineInstance]:
        """Idle instances on the GPUs that are awake, in the order in which they are given up: by priority and LRU."""
        return self._given_up(one, [other for other in others if other.place == "awake"], now, overdue=overdue)

    def _idle(
        self, one: EngineInstance, others: Iterable[EngineInstance], now: float, *, overdue: bool
    ) -> list[EngineInstance]:
        """Idle instances on the GPUs in the order in which they are given up: awake ones, and then sleepers, which free
        little and whose load costs much. O(sleepers on the GPUs) too.
        """
        resting = self._state.resting.overlapping(one).values()
        return self._given_up(one, [*others, *resting], now, overdue=overdue)

    def _given_up(
        self, one: EngineInstance, near: Iterable[EngineInstance], now: float, *, overdue: bool
    ) -> list[EngineInstance]:
        near = [other for other in near if other.claim != "cold" and (overdue or other.kept_until_s() <= now)]
        busy = self._busy_beside(one)
        idle = (other for other in near if self._free(other, busy))
        return sorted(idle, key=lambda other: (other.place != "awake", -other.spec.priority, other.used_s, other.id))

    def _victims(
        self, needs: Sequence[float], idle: Sequence[EngineInstance], one: EngineInstance
    ) -> list[Candidate] | None:
        """Return the victims among idle instances, with the levels to which each can be evicted."""
        wanted = one.id.chunk
        frees = [(shared_gpus(other.id.chunk, wanted), other.device_gb) for other in idle]
        chosen = choose_victims(needs, frees)
        return None if chosen is None else [self._candidate(idle[at], frees[at][0]) for at in chosen]

    def _candidate(self, other: EngineInstance, gpus: range) -> Candidate:
        return Candidate(other.id, gpus, tuple(self._options(other)))

    def _busy_beside(self, one: EngineInstance) -> int:
        """Return the GPUs on which others have a step or an activation, as bits. O(instances with something to do)."""
        busy = 0
        for other in self._state.agenda.values():
            if (other.step is not None or other.activation is not None) and other is not one:
                busy |= other.mask
        return busy

    def _free(self, other: EngineInstance, busy: int) -> bool:
        """Return whether a step of an instance may begin. `busy`: GPUs on which another one has something under way."""
        if other.running or other.step is not None or other.activation is not None or other.state == "unknown":
            return False
        if other.stuck or other.leaving or other.stop_why:
            return False
        return not other.mask & busy

    def _options(self, other: EngineInstance) -> list[LevelOption]:
        name, device_gb, spec = other.id, other.device_gb, other.spec
        if other.place != "awake":
            return [LevelOption("cold", self._stop_cost_s(other), device_gb)]
        evict_s, restore_s = self._state.times.evict_s, self._state.times.restore_s
        options = [LevelOption("cold", evict_s(name, "cold") + restore_s(name, "cold"), device_gb)]
        for level in spec.levels:
            if level != "cold":
                asleep_gb, host_gb = spec.asleep_gb.get(level, 0.0), spec.host_gb.get(level, 0.0)
                cost_s = evict_s(name, level) + restore_s(name, level)
                options.append(LevelOption(level, cost_s, device_gb - asleep_gb, host_gb))
        return options

    def _sleepers(self, one: EngineInstance) -> list[SleepingEngine]:
        """Sleepers of the node that can be stopped for host memory, in the order in which they are given up."""
        sleepers = [other for other in self._state.sleepers.values() if other.host_gb > 0 and not other.waiting]
        busy = self._busy_beside(one)
        asleep = [other for other in sleepers if other.place not in ("awake", "cold")]
        found = [other for other in asleep if self._free(other, busy)]
        found.sort(key=lambda other: -other.spec.priority)
        return [SleepingEngine(other.id, other.host_gb, self._stop_cost_s(other)) for other in found]

    def _stop_cost_s(self, other: EngineInstance) -> float:
        """Cost of stopping a sleeper: the stop, and what its next load takes longer than its restore."""
        times = self._state.times
        later_s = 0.0
        if other.place != "awake":
            later_s = max(0.0, times.restore_s(other.id, "cold") - times.restore_s(other.id, other.place))
        return times.evict_s(other.id, "cold") + later_s

    # ---- ends of load, restore and canary ------------------------------------------------------------------------

    def stepped(self, one: EngineInstance, stepped: Stepped, now: float) -> None:
        """Handle the end of a load, a restore or a canary."""
        state = self._state
        outcome, reason = ("failed", one.died) if one.died else (stepped.outcome, stepped.reason)
        one.died = ""
        if one.cancelled and outcome != "ok":
            self._cancellations.ended(one, now)
            return
        one.cancelled = ""
        if stepped.step != "canary":
            one.late = 0
        if outcome == "oom" and stepped.step != "canary":
            self._out_of_memory(one, stepped, now)
        elif outcome != "ok":
            self._failed(one, stepped, reason, now)
        elif stepped.step == "canary":
            one.checked, one.faults, one.probing, one.activation = True, 0, False, None
            one.restored_s = one.used_s = now
            state.set_state(one, "resident", "", now)
            if not one.leaving:
                self._queue.admit(one, now)
        else:
            state.times.record(one.id, "restore", "cold" if one.place == "awake" else one.place, stepped.took_s)
            one.place = "awake"
            state.set_host(one, "cold")
            if not one.leaving:
                state.begin(one, "canary", one.why, now)

    def _failed(self, one: EngineInstance, stepped: Stepped, reason: str, now: float) -> None:
        what = f"its {stepped.step} failed: {reason}"
        if stepped.step != "load":
            one.faults += 1
        if stepped.step == "load" or one.faults >= MOST_FAULTS:
            self._engines.quarantine(one, what, now)
        else:
            self._state.begin(one, "stop", what, now)

    def _out_of_memory(self, one: EngineInstance, stepped: Stepped, now: float) -> None:
        """Try again after the stops of engines that died, else after the eviction of the next LRU instance, once.

        Minimum residency does not matter then.
        """
        if one.leaving or one.activation is None:
            return
        others = self._state.overlapping(one)
        what = f"its {stepped.step} ran out of memory: {stepped.reason}"
        dead = [other for other in others if other.stop_why and not other.stopped]  # what they use may be what lacks
        for other in dead:
            one.activation.room[other.id] = None
            other.room_for = one.id
        if not dead:
            idle = self._awake(one, others, now, overdue=True) or self._idle(one, others, now, overdue=True)
            candidates = [self._candidate(other, shared_gpus(other.id.chunk, one.id.chunk)) for other in idle[:1]]
            if one.activation.oom or not candidates or not one.waiting:
                self._engines.quarantine(one, what, now)
                return
            one.activation.oom = True
            plan = choose_levels([0.0 for _ in one.id.chunk.gpus], candidates, self._state.host_free_gb())
            for name, level in plan.levels:
                self._evict(one, name, level, f"room for {one.id}: {what}", now)
        if stepped.step == "load":
            self._state.begin(one, "stop", what, now)
        else:
            self._state.set_state(one, one.state, what, now)
