"""Report of a bench: figures with their targets, as one JSON object."""

from typing import Literal

import msgspec


class BenchError(Exception):
    """Failure of a measurement: the mesh or a peer did not do what was requested. The message has the details."""


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bound of a figure."""

    sense: Literal["at least", "at most"]
    bound: float
    why: str = ""
    """Origin of an absolute bound that replaces a relative one."""

    def met(self, value: float) -> bool:
        return value >= self.bound if self.sense == "at least" else value <= self.bound


def at_least(bound: float, why: str = "") -> Target:
    return Target("at least", bound, why)


def at_most(bound: float, why: str = "") -> Target:
    return Target("at most", bound, why)


class BenchFigure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measured number."""

    name: str
    """``<measurement>.<figure>``."""
    what: str
    value: float
    unit: str
    """``/s``, ``s``, ``ms``, ``us``, ``%``, ``B``, ``MB`` (10^6 bytes), ``x`` (a ratio) or nothing (a count)."""
    target: Target | None = None
    met: bool | None = None
    """None without a target."""


def figure(name: str, what: str, value: float, unit: str, target: Target | None = None) -> BenchFigure:
    """Return a figure compared with its target."""
    met = target.met(value) if target else None
    return BenchFigure(name=name, what=what, value=value, unit=unit, target=target, met=met)


class Skipped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measurement or a peer without figures."""

    name: str
    reason: str


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The measuring machine. Measure again if its load average is well above that of the bench."""

    cpus: int
    python: str
    load_before: float
    """One-minute load average at the start."""
    loop_ms: float
    """Duration of a loop of a million additions in Python. Durations on two machines compare by it."""


class BenchReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object that ``treadle bench --json`` prints."""

    machine: Machine
    took_s: float
    figures: list[BenchFigure]
    skipped: list[Skipped]
    failed: list[Skipped]
    """Failed measurements; with any, the exit status is 1."""
