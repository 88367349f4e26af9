"""The queue of one worker compared with a list that is searched as a whole for each decision."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared.policy.routing.worker_queue import WorkerQueue

IDLE_S = 10.0
TRAJECTORIES = st.sampled_from(["", "t1", "t2", "t3", "t4"])


@dataclass
class Waiting:
    """A waiting call."""

    call: str
    holder: tuple[str, str]
    order: tuple[float, float, int]


@dataclass
class Worker:
    """The oracle: everything that happened, without any index."""

    most_calls: int | None
    kv_tokens: int | None
    waiting: list[Waiting] = field(default_factory=list)
    running: dict[str, tuple[str, str]] = field(default_factory=dict)
    tokens: dict[tuple[str, str], int] = field(default_factory=dict)
    admitted: dict[tuple[str, str], float] = field(default_factory=dict)
    """Holder -> end of its last call."""

    def lapse(self, now: float) -> None:
        busy = {*self.running.values(), *(one.holder for one in self.waiting)}
        for holder, idle_s in list(self.admitted.items()):
            if holder not in busy and (not holder[0] or now - idle_s >= IDLE_S):
                del self.admitted[holder]
        self.tokens = {
            holder: tokens for holder, tokens in self.tokens.items() if holder in busy or holder in self.admitted
        }

    def next(self, now: float) -> str | None:
        self.lapse(now)
        if self.most_calls is not None and len(self.running) >= self.most_calls:
            return None
        blocked = False
        for one in sorted(self.waiting, key=lambda each: each.order):
            if one.holder in self.admitted:
                return one.call
            reserved = sum(self.tokens[holder] for holder in self.admitted)
            fits = self.kv_tokens is None or reserved + self.tokens[one.holder] <= self.kv_tokens
            if not blocked and (fits or not self.admitted):
                return one.call
            blocked = True
        return None


class QueueMachine(RuleBasedStateMachine):
    """Random histories of one worker."""

    @initialize(most=st.none() | st.integers(1, 3), kv=st.none() | st.sampled_from([50, 100]))
    def begin(self, most: int | None, kv: int | None) -> None:
        self.queue, self.oracle = WorkerQueue(IDLE_S, most, kv), Worker(most, kv)
        self.now, self.serial = 0.0, 0

    @rule(trajectory=TRAJECTORIES, tokens=st.sampled_from([0, 20, 60, 120]), priority=st.sampled_from([-1.0, 0.0, 2.0]))
    def push(self, trajectory: str, tokens: int, priority: float) -> None:
        self.serial += 1
        call = f"c{self.serial}"
        holder, order = (trajectory, "") if trajectory else ("", call), (priority, self.now, self.serial)
        self.queue.push(call, holder, tokens, order, self.now)
        self.oracle.lapse(self.now)
        self.oracle.waiting.append(Waiting(call, holder, order))
        self.oracle.tokens[holder] = max(tokens, self.oracle.tokens.get(holder, 0))

    @rule()
    def start(self) -> None:
        wanted = self.oracle.next(self.now)
        assert self.queue.start(self.now) == wanted
        if wanted is not None:
            one = next(each for each in self.oracle.waiting if each.call == wanted)
            self.oracle.waiting.remove(one)
            self.oracle.running[wanted] = one.holder
            self.oracle.admitted.setdefault(one.holder, self.now)

    @precondition(lambda self: self.oracle.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(sorted(self.oracle.running)))
        assert self.queue.end(call, self.now, keep=True)
        holder = self.oracle.running.pop(call)
        self.oracle.admitted[holder] = self.now
        self.oracle.lapse(self.now)

    @precondition(lambda self: self.oracle.waiting)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.oracle.waiting))
        assert self.queue.discard(one.call, self.now)
        assert not self.queue.discard(one.call, self.now)
        self.oracle.waiting.remove(one)
        if one.holder in self.oracle.admitted:
            self.oracle.admitted[one.holder] = self.now
        self.oracle.lapse(self.now)

    @rule(trajectory=TRAJECTORIES, tokens=st.sampled_from([30, 90]))
    def grow(self, trajectory: str, tokens: int) -> None:
        holder = (trajectory, "")
        self.queue.grow(holder, tokens)
        if holder in self.oracle.tokens:
            self.oracle.tokens[holder] = max(tokens, self.oracle.tokens[holder])

    @rule(trajectory=TRAJECTORIES)
    def trajectory_ends(self, trajectory: str) -> None:
        holder = (trajectory, "")
        self.queue.release(holder)
        if holder not in self.oracle.running.values() and all(one.holder != holder for one in self.oracle.waiting):
            self.oracle.admitted.pop(holder, None)
            self.oracle.lapse(self.now)

    @rule(pause_s=st.sampled_from([0.5, 4.0, 12.0]))
    def wait(self, pause_s: float) -> None:
        self.now += pause_s
        self.queue.lapse(self.now)
        self.oracle.lapse(self.now)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "queue"):
            self.queue.check()
            assert self.queue.running == self.oracle.running
            assert self.queue.waiting_calls() == [
                one.call for one in sorted(self.oracle.waiting, key=lambda each: each.order)
            ]
            assert self.queue.reserved_tokens == sum(self.oracle.tokens[holder] for holder in self.oracle.admitted)


QueueMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestQueue = QueueMachine.TestCase
