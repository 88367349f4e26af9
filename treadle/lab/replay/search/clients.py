"""The baselines: trajectories that call by themselves (§6.1), and the same behind a limiter in each process.

The limiter is that of verl 0.9's RateLimitedRewardManager: calls at once and calls a second, counted in one process.
Each try takes from it, which favours it: there, retries inside one call do not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from treadle.lab.replay.search.assumptions import Client
from treadle.lab.replay.search.provider import SimulatedProvider
from treadle.lab.replay.search.trace import AgentCall
from treadle.lab.replay.search.virtual_time import VirtualTime

Done = Callable[[bool], None]


@dataclass
class Limiter:
    """Semaphore and token bucket of one process; waiting tries in order."""

    time: VirtualTime
    per_s: float
    burst: float
    concurrency: int
    running: int = 0
    _tokens: float = field(init=False)
    _at_s: float = 0.0
    _waiting: deque[Callable[[], None]] = field(default_factory=deque)
    _woken_s: float = -1.0
    """Time for which a wake-up is set."""

    def __post_init__(self) -> None:
        self._tokens = self.burst

    def acquire(self, go: Callable[[], None]) -> None:
        """Call `go` when its turn has come."""
        self._waiting.append(go)
        self._serve()

    def release(self) -> None:
        """End a try."""
        self.running -= 1
        self._serve()

    def _serve(self) -> None:
        now = self.time.now
        self._tokens = min(self.burst, self._tokens + (now - self._at_s) * self.per_s)
        self._at_s = now
        while self._waiting and self.running < self.concurrency and self._tokens >= 1.0 - 1e-9:
            self._tokens -= 1.0
            self.running += 1
            self._waiting.popleft()()
        if self._waiting and self.running < self.concurrency and self._woken_s <= now:
            self._woken_s = now + (1.0 - self._tokens) / self.per_s
            self.time.at(self._woken_s, self._serve)


@dataclass
class Clients:
    """Calls of trajectories without a mesh."""

    time: VirtualTime
    providers: Mapping[str, SimulatedProvider]
    rules: Client
    random: Random
    limiters: Mapping[tuple[int, str], Limiter] = field(default_factory=dict)
    """(Process, upstream) -> its limiter; empty: none has one."""

    def call(self, slot: int, call: AgentCall, done: Done) -> None:
        """Call, with retries."""
        self._try(slot, call, done, 0)

    def _try(self, slot: int, call: AgentCall, done: Done, tries: int) -> None:
        limiter = self.limiters.get((slot % self.rules.processes, call.upstream))
        if limiter is None:
            self._send(slot, call, done, tries, None)
        else:
            limiter.acquire(lambda: self._send(slot, call, done, tries, limiter))

    def _send(self, slot: int, call: AgentCall, done: Done, tries: int, limiter: Limiter | None) -> None:
        provider, rules = self.providers[call.upstream], self.rules
        answer = provider.call(self.time.now, call.work)
        if answer.admitted:
            self.time.after(answer.after_s, provider.leave)  # also if the client has given it up

        def end() -> None:
            if limiter is not None:
                limiter.release()
            if answer.outcome == "ok" and answer.after_s <= rules.timeout_s:
                done(True)
            elif tries >= rules.retries:
                done(False)
            else:
                delay_s = rules.backoff_s * 2.0**tries * (1.0 + self.random.uniform(-rules.jitter, rules.jitter))
                if rules.heeds:
                    delay_s = max(delay_s, answer.retry_after_s)
                self.time.after(delay_s, lambda: self._try(slot, call, done, tries + 1))

        self.time.after(min(answer.after_s, rules.timeout_s), end)
