"""The protocol of backends. One backend adapts one engine: one model service at one degree on one chunk.

Laws:
  - residency is confirmed after each evict and restore. For vLLM and SGLang the 200 of that call is no proof (facts A2,
    A3); of a plain process only its end and its health are known;
  - reading the state of an engine wakes nothing, and sends nothing to its scheduler;
  - each call ends: within its deadline, or within the grace and kill times of a process;
  - a backend is used by one writer. Calls of `evict`, `restore`, `prepare` and `stop` do not overlap; reads may.

ARL-Tangram section 5.3 assumes that eviction writes nothing back. Today's engines do, so `write_back` is a flag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

from shared.runtime.units import Seconds

Level = Literal["cold", "asleep1", "asleep2"]
"""Place of an evicted engine's weights. `cold`: the engine is stopped. `asleep1`: the engine runs, its weights are in
host memory. `asleep2`: the engine runs, and its weights are dropped; a restore reads them from disk."""
Residency = Literal["cold", "asleep1", "asleep2", "resident", "unknown"]
"""State of an engine as it was read. `unknown`: it cannot be read, or it is between two states. Such an engine may hold
any amount of device memory."""


class EngineError(Exception):
    """A call to an engine failed. The text names the call and the answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OutOfMemory(EngineError):
    """The engine reports that there is not enough device memory."""


class EngineGone(EngineError):
    """The engine's process has ended, or nothing listens at its address."""


class WrongAnswer(EngineError):
    """The engine answered a canary, and the answer is wrong. Its weights cannot be trusted."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Properties of a kind of engine, and of the way in which it was given."""

    levels: tuple[Level, ...]
    """Levels that `evict` accepts. Without `cold` if the engine was given by its URL: it is not ours to stop."""
    write_back: bool
    """Eviction to `asleep1` copies the weights to host memory each time."""
    preserves_graphs: bool
    """Captured graphs are still valid after a restore from sleep."""
    needs_idle: bool
    """The engine dies if it is put to sleep while requests run. The caller fences and drains first."""
    can_autowake: bool
    """A request wakes a sleeping engine. Otherwise the request waits until something else wakes it."""
    answers_at_work: bool = False
    """Its state can be read while it executes requests, however many. Otherwise an engine that cannot be read may be at
    work."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Measured memory of an engine, in bytes, and CPU time. None: it cannot be measured."""

    device_bytes: int | None
    host_bytes: int | None
    cpu_s: float | None = None
    """CPU seconds of its present processes so far."""


@dataclass(frozen=True, slots=True)
class EngineDeadlines:
    """Limits of the calls to one engine, in seconds."""

    start_s: Seconds = 600.0
    """From the start of the process until it is healthy."""
    evict_s: Seconds = 120.0
    restore_s: Seconds = 300.0
    canary_s: Seconds = 60.0
    read_s: Seconds = 5.0
    """Each read of a state, and each abort."""
    settle_s: Seconds = 0.1
    """Time between two readings that must agree before an eviction is confirmed. A restore does not wait for it: its
    canary follows."""
    grace_s: Seconds = 10.0
    """Time for the process to end by itself after SIGTERM."""
    kill_s: Seconds = 10.0
    """Time for its processes to end after SIGKILL."""


class Backend(Protocol):
    """One engine. Each method raises `EngineError` or one of its classes, unless it says otherwise."""

    @property
    def flags(self) -> Capabilities: ...

    @property
    def url(self) -> str:
        """Base address for calls, without a slash at its end. Empty while no engine runs."""
        ...

    async def prepare(self) -> None:
        """Start the engine, or find the given one, and wait until it is resident. Repeats do no harm.

        If a start fails, nothing of it is left.
        """
        ...

    async def evict(self, level: Level) -> None:
        """Free device memory and confirm it. The caller has drained the engine if `flags.needs_idle`."""
        ...

    async def restore(self) -> None:
        """Make the engine resident again and confirm it, also from `cold`. The caller sends a canary afterwards."""
        ...

    async def residency(self) -> Residency:
        """Return the state that the engine reports. Wakes nothing and raises nothing."""
        ...

    async def footprint(self) -> Footprint:
        """Return the measured memory. Raises nothing."""
        ...

    async def canary(self) -> None:
        """Send the canary, where one was declared. Raise `WrongAnswer` if the answer is wrong."""
        ...

    async def abort(self) -> None:
        """End the running requests of the engine, where its kind can do that."""
        ...

    async def stop(self) -> None:
        """Stop the engine and all of its processes, also if it hangs. Ends within `grace_s` + `kill_s`.

        Raises:
            EngineError: a process is left, or the engine was given by its URL.
        """
        ...

    async def ended(self) -> str:
        """Wait until the engine's process has ended. Return how. Waits forever for an engine given by its URL.

        Processes that the engine started may be left. `stop` ends them.
        """
        ...


def check_level(flags: Capabilities, level: Level) -> None:
    """Raise `EngineError` if an engine cannot be evicted to a level."""
    if level not in flags.levels:
        able = ", ".join(flags.levels) or "none, because it was given by its URL; give a `command` instead"
        raise EngineError(f"the engine cannot be evicted to {level}; its levels: {able}")


_MEMORY_MESSAGES: Final = (
    "out of memory",
    "less than desired gpu memory utilization",
    "not enough memory",
    "no available memory for the cache blocks",
)
"""Texts of CUDA and PyTorch, of vLLM's check before it loads, of SGLang's, and of vLLM's KV cache. Lower case."""


def means_out_of_memory(text: str) -> bool:
    """Return whether an engine's text reports a lack of device memory."""
    lower = text.lower()
    return any(message in lower for message in _MEMORY_MESSAGES)
