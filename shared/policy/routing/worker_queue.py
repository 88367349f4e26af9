"""Queue of one worker: calls in flight, waiting calls, and reservations of its KV cache by trajectory.

Laws (tests/shared/policy/routing/test_worker_queue.py):
  - cap: no call starts while `most_calls` are in flight;
  - KV: a trajectory is admitted if its expected tokens at its end fit beside the reservations of the admitted ones in
    `kv_tokens`. If there is no other reservation, a trajectory is always admitted. A call of an admitted trajectory
    needs no new admission. A reservation grows with what the trajectory really holds, also above `kv_tokens`;
  - lapse: a trajectory without a call, waiting or in flight, keeps its reservation for `kv_idle_s`;
  - order: calls start by (priority, arrival). There is one exception: while the first call of the trajectories that are
    not admitted does not fit, no other trajectory is admitted, and calls of admitted trajectories pass it.
So no call starves under finite load. While the first one is blocked, no reservation begins. Each present one ends with
its trajectory or lapses, and the first trajectory of an empty worker is always admitted.

A call without a trajectory is a holder of its own. Its reservation ends with it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf

from shared.policy.routing.keyed_heap import KeyedHeap

Holder = tuple[str, str]
"""Holder of a reservation: (trajectory, ""), or ("", call) of a call without a trajectory."""
Order = tuple[float, float, int]
"""Place of a call: (priority, time of arrival, serial). The serial is different for each call."""


@dataclass(slots=True)
class _Reservation:
    """Tokens of one holder: reserved if it is admitted, else asked for."""

    tokens: int
    admitted: bool = False
    running: int = 0
    waiting: set[str] = field(default_factory=set)


@dataclass(slots=True)
class WorkerQueue:
    """Calls and reservations of one worker.

    `push`, `discard`, `start` and `end` are O(log waiting), amortised. Admission also moves the other waiting calls of
    the trajectory once. `now` never decreases.
    """

    kv_idle_s: float
    most_calls: int | None = None
    kv_tokens: int | None = None
    """None: not known, so each trajectory is admitted."""
    reserved_tokens: int = 0
    """Tokens of the admitted holders."""
    asked_tokens: int = 0
    """Tokens of the holders that wait for admission."""
    running: dict[str, Holder] = field(default_factory=dict)
    """Calls in flight."""
    _waiting: dict[str, Holder] = field(default_factory=dict)
    _admitted: KeyedHeap[Order] = field(default_factory=KeyedHeap)
    """Waiting calls of admitted holders."""
    _unadmitted: KeyedHeap[Order] = field(default_factory=KeyedHeap)
    """The other waiting calls."""
    _holders: dict[Holder, _Reservation] = field(default_factory=dict)
    _idle: OrderedDict[Holder, float] = field(default_factory=OrderedDict)
    """Admitted holders without a call -> end of the last one. The oldest is first."""
    _reservations: int = 0
    """Number of admitted holders."""

    @property
    def waiting(self) -> int:
        """Number of waiting calls."""
        return len(self._waiting)

    @property
    def reservations(self) -> int:
        """Number of admitted holders."""
        return self._reservations

    @property
    def full(self) -> bool:
        """The cap of calls in flight is reached."""
        return self.most_calls is not None and len(self.running) >= self.most_calls

    def waiting_calls(self) -> list[str]:
        """Waiting calls by (priority, arrival). O(waiting log waiting)."""
        orders = {call: heap.key(call) for heap in (self._admitted, self._unadmitted) for call in heap}
        return sorted(orders, key=orders.__getitem__)

    def waiting_of(self, holder: Holder) -> list[str]:
        """Waiting calls of one holder, in no order. O(these)."""
        known = self._holders.get(holder)
        return [] if known is None else list(known.waiting)

    def next_lapse_s(self) -> float:
        """Time of the next lapse for which a waiting call may wait; infinity if there is none."""
        if not self._unadmitted or not self._idle:
            return inf
        return next(iter(self._idle.values())) + self.kv_idle_s

    # ---- calls -----------------------------------------------------------------------------------------------------

    def push(self, call: str, holder: Holder, tokens: int, order: Order, now: float) -> None:
        """Add a waiting call. `tokens`: expected tokens of its holder at its end; they only grow.

        Raises:
            ValueError: the call waits here or is in flight here.
        """
        if call in self._waiting or call in self.running:
            raise ValueError(f"call {call!r} is in this queue: push it once")
        self.lapse(now)
        reservation = self._take(holder, tokens)
        reservation.waiting.add(call)
        self._waiting[call] = holder
        (self._admitted if reservation.admitted else self._unadmitted).set(call, order)

    def discard(self, call: str, now: float) -> bool:
        """Remove a waiting call; False if it does not wait here."""
        holder = self._waiting.pop(call, None)
        if holder is None:
            return False
        self._admitted.discard(call)
        self._unadmitted.discard(call)
        self._holders[holder].waiting.discard(call)
        self._rest(holder, now, keep=bool(holder[0]))
        return True

    def start(self, now: float) -> str | None:
        """Move the next call to those in flight, and admit its trajectory; None if none may start."""
        self.lapse(now)
        call = None if self.full else self._next()
        if call is None:
            return None
        holder = self._waiting.pop(call)
        reservation = self._holders[holder]
        self._admit(reservation)
        self._admitted.discard(call)
        reservation.waiting.discard(call)
        reservation.running += 1
        self.running[call] = holder
        return call

    def restore(self, call: str, holder: Holder, tokens: int, now: float) -> None:
        """Add a call that is in flight already, whatever the cap and the reservations are. No effect if it is here."""
        if call in self.running:
            return
        self.discard(call, now)
        self.lapse(now)
        reservation = self._take(holder, tokens)
        self._admit(reservation)
        reservation.running += 1
        self.running[call] = holder

    def end(self, call: str, now: float, *, keep: bool) -> bool:
        """End a call in flight; False if it is not here. `keep`: the reservation stays until it lapses."""
        holder = self.running.pop(call, None)
        if holder is None:
            return False
        self._holders[holder].running -= 1
        self._rest(holder, now, keep=keep and bool(holder[0]))
        return True

    def take_waiting(self, now: float) -> list[str]:
        """Remove all waiting calls. Returns them in order. O(waiting log waiting)."""
        calls = self.waiting_calls()
        for call in calls:
            self.discard(call, now)
        return calls

    # ---- reservations ----------------------------------------------------------------------------------------------

    def grow(self, holder: Holder, tokens: int) -> None:
        """Raise the tokens of a holder to those that it really holds. No effect on an unknown holder."""
        reservation = self._holders.get(holder)
        more = 0 if reservation is None else tokens - reservation.tokens
        if reservation is None or more <= 0:
            return
        reservation.tokens = tokens
        if reservation.admitted:
            self.reserved_tokens += more
        else:
            self.asked_tokens += more

    def release(self, holder: Holder) -> None:
        """End the reservation of a holder without a call. No effect on others."""
        if holder in self._idle:
            del self._idle[holder]
            self._remove(holder)

    def release_idle(self) -> None:
        """End the reservations of all holders without a call. O(reservations)."""
        for holder in list(self._idle):
            self.release(holder)

    def lapse(self, now: float) -> None:
        """End reservations whose time has passed. Amortised O(1)."""
        while self._idle:
            holder, since_s = next(iter(self._idle.items()))
            if since_s + self.kv_idle_s > now:
                return
            self.release(holder)

    def _next(self) -> str | None:
        admitted, head = self._admitted.first(), self._unadmitted.first()
        if head is not None and (admitted is None or head[0] < admitted[0]):
            tokens = self._holders[self._waiting[head[1]]].tokens
            if self.kv_tokens is None or not self._reservations or self.reserved_tokens + tokens <= self.kv_tokens:
                return head[1]
        return None if admitted is None else admitted[1]

    def _take(self, holder: Holder, tokens: int) -> _Reservation:
        """Reservation of a holder with a new call."""
        self._idle.pop(holder, None)
        reservation = self._holders.get(holder)
        if reservation is None:
            reservation = self._holders[holder] = _Reservation(tokens)
            self.asked_tokens += tokens
        else:
            self.grow(holder, tokens)
        return reservation

    def _admit(self, reservation: _Reservation) -> None:
        if reservation.admitted:
            return
        reservation.admitted = True
        self._reservations += 1
        self.asked_tokens -= reservation.tokens
        self.reserved_tokens += reservation.tokens
        for call in reservation.waiting:
            order = self._unadmitted.discard(call)
            assert order is not None
            self._admitted.set(call, order)

    def _rest(self, holder: Holder, now: float, *, keep: bool) -> None:
        """Start the idle time of a holder if it has no call left, or remove it."""
        reservation = self._holders[holder]
        if reservation.running or reservation.waiting:
            return
        if reservation.admitted and keep:
            self._idle[holder] = now
        else:
            self._remove(holder)

    def _remove(self, holder: Holder) -> None:
        reservation = self._holders.pop(holder)
        if reservation.admitted:
            self._reservations -= 1
            self.reserved_tokens -= reservation.tokens
        else:
            self.asked_tokens -= reservation.tokens

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        self._admitted.check()
        self._unadmitted.check()
        admitted = [one for one in self._holders.values() if one.admitted]
        assert self._reservations == len(admitted)
        assert self.reserved_tokens == sum(one.tokens for one in admitted)
        assert self.asked_tokens == sum(one.tokens for one in self._holders.values() if not one.admitted)
        for holder, one in self._holders.items():
            assert one.waiting == {call for call, owner in self._waiting.items() if owner == holder}
            assert one.running == sum(owner == holder for owner in self.running.values())
            assert (holder in self._idle) == (not one.waiting and not one.running), "idle without a call, and only then"
            assert one.admitted or not one.running, "a call in flight has a reservation"
            assert all(call in (self._admitted if one.admitted else self._unadmitted) for call in one.waiting)
        assert set(self._admitted) | set(self._unadmitted) == self._waiting.keys()
        assert len(self._admitted) + len(self._unadmitted) == len(self._waiting)
