"""Decisions made again: a planner told what a log holds must answer what the log says it answered.

It is deterministic, with its chances from a seed, so any difference is a defect: state that depends on something that
it was not told, or a change of the policy since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shared.policy.scaling.planner import Planner
from shared.policy.scaling.stimuli import Command, Stimulus


class Told(Protocol):
    """One stimulus of a log, and what was answered."""

    @property
    def now(self) -> float: ...
    @property
    def stimulus(self) -> Stimulus: ...
    @property
    def commands(self) -> list[Any]: ...


@dataclass(frozen=True)
class Decided:
    """One stimulus, what was answered then and what is answered now."""

    now: float
    stimulus: Stimulus
    then: list[Any]
    again: list[Any]

    @property
    def same(self) -> bool:
        return self.then == self.again


def decide_again(
    planner: Planner, log: Iterable[Told], plain: Callable[[Sequence[Command]], list[Any]]
) -> Iterator[Decided]:
    """Tell the planner everything, in order; `plain` writes commands as the log does."""
    for told in log:
        yield Decided(told.now, told.stimulus, told.commands, plain(planner.handle(told.now, told.stimulus)))
