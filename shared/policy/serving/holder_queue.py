"""Holders: each waits for its instance, is admitted at most once, and ends once.

Laws (tests/shared/policy/serving/test_holders.py): a holder that can never be admitted is refused at once, with what
to change; a waiting one is refused at its deadline at the latest; the order of an instance's holders is that of their
arrival. Requests wait during a restore and get its measured time after that (facts, A6).
"""

from __future__ import annotations

from shared.policy.serving.instance import EngineInstance, WaitingHolder
from shared.policy.serving.model import Admit, HolderEnded, InstanceId, ModelServiceSpec, RefuseHolder, Wanted
from shared.policy.serving.node_state import NodeState


class HolderQueue:
    """Waiting and admitted holders of one node. Each method is O(GPUs of the instance + holders that it names)."""

    def __init__(self, state: NodeState) -> None:
        self._state = state

    def wanted(self, now: float, wanted: Wanted) -> None:
        """Add a holder, or refuse it. One that is known already changes nothing."""
        holder, name, deadline_s = wanted
        state = self._state
        if holder in state.holders:
            return
        refusal = self.refusal(name, now)
        if refusal is None and state.waiting >= state.config.most_waiting:
            refusal = f"{state.waiting} holders wait on this node", state.config.retry_s
        if refusal is None and deadline_s <= now:
            refusal = "its deadline had passed when it arrived", state.config.retry_s
        if refusal is not None:
            state.commands.append(RefuseHolder(holder, *refusal))
            return
        one = state.get_or_add(name, now)
        one.waiting[holder] = WaitingHolder(state.arrivals, now, deadline_s)
        state.arrivals += 1
        state.waiting += 1
        state.holders[holder] = name
        state.timers.set(holder, deadline_s)
        state.touch(one)

    def refusal(self, name: InstanceId, now: float) -> tuple[str, float | None] | None:
        """Reason and retry time for which no holder of an instance may wait; None if one may."""
        state = self._state
        spec = state.services.get(name.service)
        if spec is None:
            return f"there is no service {name.service!r}: declare it with PUT /v1/services/{name.service}", None
        wrong = self._wrong_chunk(name, spec)
        if wrong:
            return wrong, None
        bad = state.bad_reason(name)
        if bad:
            return bad, state.config.bad_device_retry_s
        one = state.instances.get(name)
        if one is not None and one.quarantine and (one.stuck or not one.leaving):
            return f"{name} is quarantined: {one.quarantine}", max(state.config.retry_s, one.probe_s - now)
        if one is not None and one.yields:
            return f"{name} is {one.state}: {one.why}", state.config.retry_s
        return None

    def _wrong_chunk(self, name: InstanceId, spec: ModelServiceSpec) -> str:
        if not self._state.has_chunk(name):
            return f"{name} is no aligned chunk of {len(self._state.gpus)} GPUs"
        if name.chunk.size not in spec.degrees:
            return f"{name.service} has the degrees {', '.join(map(str, spec.degrees))}, and not {name.chunk.size}"
        needed_gb = spec.gb(name.chunk.size)
        for gpu in name.chunk.gpus:
            have = self._state.memory.device_gb[gpu]
            if needed_gb > have:
                return f"{name.service} needs {needed_gb:g} GB on each GPU, and GPU {gpu} has {have:g}"
        return ""

    def ended(self, now: float, ended: HolderEnded) -> None:
        """Remove a holder. One that is not known changes nothing."""
        one = self._remove(ended.holder)
        if one is None:
            return
        if ended.holder in one.running:
            del one.running[ended.holder]
            one.used_s = now
            if ended.ok:
                one.deaths = one.failures = 0
            one.note_end(ended, self._state.config.most_failed_calls, now)
        self._state.touch(one)

    def expire(self, holder: str, now: float) -> None:
        """RefuseHolder a waiting holder whose deadline has come."""
        one = self._remove(holder)
        assert one is not None, "a timer is removed with its holder"
        why = f"its deadline came while {one.id} was {one.state}" + (f" ({one.why})" if one.why else "")
        self._state.commands.append(RefuseHolder(holder, why, self.ready_in_s(one, now)))
        self._state.touch(one)

    def admit(self, one: EngineInstance, now: float) -> None:
        """Admit waiting holders up to the concurrency. The caller has checked that the instance may be used."""
        state = self._state
        while one.waiting and len(one.running) < one.spec.concurrency:
            holder = next(iter(one.waiting))
            del one.waiting[holder]
            state.waiting -= 1
            state.timers.set(holder, float("inf"))
            one.running[holder] = None
            one.used_s = now
            if one.unanswered_s is None:
                one.unanswered_s = now
            state.set_state(one, "running", "", now)
            state.commands.append(Admit(holder, one.id))

    def refuse_waiting(self, one: EngineInstance, reason: str, retry_in_s: float | None) -> None:
        """RefuseHolder all waiting holders of an instance."""
        self._refuse(one, list(one.waiting), reason, retry_in_s)

    def refuse_running(self, one: EngineInstance, reason: str, retry_in_s: float | None) -> None:
        """RefuseHolder all admitted holders of an instance: its engine cannot serve them any more."""
        self._refuse(one, list(one.running), reason, retry_in_s)

    def _refuse(self, one: EngineInstance, holders: list[str], reason: str, retry_in_s: float | None) -> None:
        for holder in holders:
            self._remove(holder)
            one.running.pop(holder, None)
            self._state.commands.append(RefuseHolder(holder, reason, retry_in_s))
        if holders:
            self._state.touch(one)

    def _remove(self, holder: str) -> EngineInstance | None:
        name = self._state.holders.pop(holder, None)
        if name is None:
            return None
        self._state.timers.set(holder, float("inf"))
        one = self._state.instances[name]
        if one.waiting.pop(holder, None) is not None:
            self._state.waiting -= 1
        return one

    def ready_in_s(self, one: EngineInstance, now: float) -> float:
        """Expected time until an instance is resident, by measured steps: what is left of its restore or load, or all
        of it and of the evictions before it. `Retry-After`. O(evictions under way for it).
        """
        least_s, times = self._state.config.retry_s, self._state.times
        if one.place == "awake":
            return least_s
        restore_s = times.restore_s(one.id, one.place)
        if one.step in ("load", "restore"):
            return max(least_s, restore_s - (now - one.since_s))
        room = [] if one.activation is None else [self._state.instances[name] for name in one.activation.room]
        room_s = max((times.evict_s(other.id, other.target) - (now - other.since_s) for other in room), default=0.0)
        return max(least_s, max(0.0, room_s) + restore_s)
