"""The trainer: trajectories begin together, think and call, and those that are lost are replaced.

§6.2: API failures make trajectories ineffective and reduce the pass rate, which makes the step slow. This is read as:
a step needs its whole batch, so a lost trajectory is replaced. The other one has the same thoughts and calls, so that
no system has an easier batch because its longest trajectories were lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from treadle.lab.replay.search.assumptions import TrainingStep
from treadle.lab.replay.search.measures import StepRun
from treadle.lab.replay.search.trace import AgentCall, SearchBatch
from treadle.lab.replay.search.virtual_time import VirtualTime
from treadle.lab.replay.tangram.simulated_mesh import SimulationError

MOST_S: Final = 1e6
"""Longest step: more is a defect of the replay."""

Replacement = Literal["at once", "after the round", "never"]
"""When another trajectory replaces a lost one. `never`: it is masked, and the batch is smaller."""


class Caller(Protocol):
    """How the calls of trajectories reach the services."""

    def call(self, slot: int, call: AgentCall, done: Callable[[bool], None]) -> None:
        """Begin a call; `done` receives whether it was answered."""
        ...


@dataclass(slots=True)
class _Slot:
    """One place of the batch."""

    number: int
    at: int = 0
    """Its next call."""
    starts: int = 0
    answered: int = 0
    """Calls of the present trajectory that were answered."""
    asked_s: float = 0.0


class Rollout:
    """Simulation of one step, up to the reward of its last trajectory."""

    def __init__(
        self, time: VirtualTime, caller: Caller, batch: SearchBatch, trainer: TrainingStep, replacement: Replacement,
        run: StepRun,
    ) -> None:  # fmt: skip
        self._time, self._caller, self._batch, self._trainer = time, caller, batch, trainer
        self._replacement, self._run = replacement, run
        self._open = self._active = len(batch)
        """Places without a reward; those that do something in this round."""
        self._lost: list[_Slot] = []
        """Lost in this round, to be replaced after it."""

    def run(self) -> StepRun:
        """Run until each place of the batch has its reward, or was given up.

        Raises:
            SimulationError: trajectories wait forever.
        """
        for number in range(len(self._batch)):
            self._start(_Slot(number))
        while self._open:
            if not self._time.step() or self._time.now > MOST_S:
                raise SimulationError(f"{self._open} trajectories wait at {self._time.now:.0f} s")
        return self._run

    def _start(self, slot: _Slot) -> None:
        slot.starts, slot.at, slot.answered = slot.starts + 1, 0, 0
        self._think(slot)

    def _think(self, slot: _Slot) -> None:
        trajectory = self._batch[slot.number]
        if slot.at < len(trajectory.calls):
            self._time.after(trajectory.calls[slot.at].think_s, lambda: self._act(slot))
        else:
            self._time.after(trajectory.last_s, lambda: self._reward(slot))

    def _act(self, slot: _Slot) -> None:
        slot.asked_s = self._time.now
        call = self._batch[slot.number].calls[slot.at]
        self._caller.call(slot.number, call, lambda ok: self._ended(slot, ok))

    def _ended(self, slot: _Slot, ok: bool) -> None:
        self._run.act_s.append(self._time.now - slot.asked_s)
        if ok:
            slot.at, slot.answered = slot.at + 1, slot.answered + 1
            self._think(slot)
            return
        self._run.lost += 1
        self._run.first_lost += slot.starts == 1
        self._run.wasted += slot.answered
        if self._replacement == "never" or slot.starts >= self._trainer.most_starts:
            self._run.missing += 1
            self._close(slot)
        elif self._replacement == "at once":
            self._start(slot)
        else:
            self._lost.append(slot)
            self._idle()

    def _reward(self, slot: _Slot) -> None:
        self._time.after(self._trainer.judge_s, lambda: self._close(slot))

    def _close(self, slot: _Slot) -> None:
        self._run.done_s[slot.number] = self._time.now
        self._open -= 1
        self._idle()

    def _idle(self) -> None:
        """A place does nothing more in this round; the next one begins if no place does."""
        self._active -= 1
        if not self._active and self._lost:
            again, self._lost = self._lost, []
            self._active = len(again)
            for slot in again:
                self._start(slot)
