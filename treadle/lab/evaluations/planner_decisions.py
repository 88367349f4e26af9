"""Comparison of a planner's decisions with the same decisions repeated from its stimulus log.

A planner is deterministic: its random draws come from a seed. So a difference is a defect (state that depends on
something outside the stimuli) or a change of the policy since.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shared.policy.scaling.planner import Planner
from shared.policy.scaling.stimuli import BatchAdded, BatchRemoved, FirstRequestArrived, ProgressReported, Stimulus
from shared.store.stimulus_log import NAME, LogEntry, LogError, LogHeader, read_log, to_builtins

KEPT = 100
"""Differences that are kept: the first ones, because later ones may be consequences."""
SHOWN = 5
"""Number of these in the table for people."""


@dataclass(frozen=True)
class RepeatedDecision:
    """One stimulus, the logged commands, and the commands of the repetition."""

    now: float
    stimulus: Stimulus
    then: list[Any]
    again: list[Any]

    @property
    def same(self) -> bool:
        return self.then == self.again


def repeated(planner: Planner, log: Iterable[LogEntry]) -> Iterator[RepeatedDecision]:
    """Pass all stimuli of a log to a planner, in order."""
    for entry in log:
        again = to_builtins(planner.handle(entry.now, entry.stimulus))
        yield RepeatedDecision(entry.now, entry.stimulus, entry.commands, again)


@dataclass(frozen=True)
class LoggedCommand:
    """One command of a log."""

    at_s: float
    """After the log's first stimulus."""
    because: str
    pool: str
    units: str
    why: str


@dataclass(frozen=True)
class Difference:
    """One stimulus whose commands differ now."""

    stimulus: int
    """Its number in the log, from 1."""
    at_s: float
    description: str
    """The stimulus in a few words."""
    then: list[Any]
    again: list[Any]

    def sides(self) -> tuple[list[str], list[str]]:
        """Commands then and now, one line each; as JSON if the short forms are equal."""
        then, again = ([_answer(one) for one in side] for side in (self.then, self.again))
        if then == again:
            then, again = ([json.dumps(one) for one in side] for side in (self.then, self.again))
        return then, again

    def sentence(self) -> str:
        """Return the difference in one line."""
        then, again = (" and ".join(side) or "nothing" for side in self.sides())
        return f"stimulus {self.stimulus:,} ({self.description}, after {self.at_s:.2f} s): then {then}; now {again}"


@dataclass
class Comparison:
    """Comparison of a whole log. Memory is bounded by `last` decisions and `KEPT` differences."""

    header: LogHeader
    last: int | None
    """Number of decisions to keep; None: all."""
    stimuli: int = 0
    decisions: int = 0
    """Commands: targets and expected completions."""
    different: int = 0
    """Stimuli whose commands differ now."""
    differences: list[Difference] = field(default_factory=list)
    lines: deque[LoggedCommand] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.lines = deque(maxlen=self.last)

    @property
    def same(self) -> bool:
        return not self.different

    @property
    def same_share(self) -> float:
        """Share of equal stimuli; 1 without stimuli."""
        return 1.0 - self.different / self.stimuli if self.stimuli else 1.0

    def verdict(self) -> str:
        """Return the verdict in one line."""
        others = "1 stimulus is" if self.different == 1 else f"{self.different:,} stimuli are"
        found = "all the same" if self.same else f"{others} different now"
        return f"{self.stimuli:,} stimuli, {self.decisions:,} decisions: {found}"

    def document(self) -> dict[str, Any]:
        """Return the document of `treadle replay planner --json`."""
        differences = [
            {
                "stimulus": one.stimulus,
                "at_s": one.at_s,
                "description": one.description,
                "then": one.then,
                "again": one.again,
            }
            for one in self.differences
        ]
        return {
            "stimuli": self.stimuli,
            "decisions": self.decisions,
            "same": self.same,
            "differences": differences,
        }


def newest_log(folder: Path) -> Path:
    """Return the newest log of a folder.

    Raises:
        LogError: the folder holds none.
    """
    logs = list(folder.glob(f"{NAME}-*.log"))
    if not logs:
        raise LogError(f"{folder} holds no stimulus log: set SCALING_PLANNER_STIMULUS_LOGS to it, run the planner")
    return max(logs, key=lambda path: (len(path.name), path.name))  # named by start, in milliseconds


def compared(path: Path, last: int | None = 0) -> Comparison:
    """Repeat every decision of a log.

    Args:
        path: of the log.
        last: decisions to keep; None: all.

    Raises:
        LogError: it is no log of this version.
        OSError: it cannot be read.
    """
    header, log = read_log(path)
    made = Comparison(header, last)
    began = None
    for decision in repeated(header.planner(), log):
        began = decision.now if began is None else began
        made.stimuli += 1
        made.decisions += len(decision.then)
        made.lines.extend(_decisions(decision, began))
        if not decision.same:
            made.different += 1
            if len(made.differences) < KEPT:
                after_s, described = decision.now - began, _described(decision)
                made.differences.append(Difference(made.stimuli, after_s, described, decision.then, decision.again))
    return made


def show(made: Comparison, console: Console) -> None:
    """Print the kept decisions, the verdict, and the first differences side by side."""
    if made.lines:
        console.print(_decisions_table(made))
    console.print(made.verdict(), markup=False)
    if made.differences:
        console.print(_differences_table(made))


def _decisions_table(made: Comparison) -> Table:
    several = len(made.lines) < made.decisions
    title = f"The last {len(made.lines):,} of {made.decisions:,} decisions" if several else "Decisions"
    table = Table(title=title, title_justify="left", pad_edge=False)
    table.add_column("after, s", justify="right", no_wrap=True)
    table.add_column("event")
    table.add_column("pool")
    table.add_column("units", justify="right", no_wrap=True)
    table.add_column("why", ratio=1)
    for one in made.lines:
        table.add_row(f"{one.at_s:,.2f}", one.because, one.pool, one.units, one.why)
    return table


def _differences_table(made: Comparison) -> Table:
    shown = made.differences[:SHOWN]
    title = f"The first {len(shown):,} of {made.different:,} differences" if len(shown) < made.different else None
    table = Table(title=title or "Differences", title_justify="left", pad_edge=False)
    table.add_column("stimulus", justify="right", no_wrap=True)
    table.add_column("after, s", justify="right", no_wrap=True)
    table.add_column("event")
    table.add_column("commands then", ratio=1)
    table.add_column("commands now", ratio=1)
    for one in shown:
        for number, (then, again) in enumerate(zip_longest(*one.sides(), fillvalue="–")):
            first = (f"{one.stimulus:,}", f"{one.at_s:,.2f}", one.description) if number == 0 else ("", "", "")
            table.add_row(*first, then, again)
        table.add_section()
    return table


def _decisions(decision: RepeatedDecision, began: float) -> Iterator[LoggedCommand]:
    for name, one in decision.then:
        at_s = decision.now - began
        if name == "PublishTarget":
            reason = one["reason"]
            yield LoggedCommand(
                at_s, reason["event"], one["pool"], _change(one), f"{reason['why']}: {reason['summary']}"
            )
        else:
            yield LoggedCommand(
                at_s, _described(decision), "", "", f"T of batch {one['batch']}: after {one['at'] - began:,.2f} s"
            )


def _answer(command: Sequence[Any]) -> str:
    """Return one command of a log in a few words."""
    name, one = command
    if name == "PublishTarget":
        return f"{one['pool']} {_change(one)}: {one['reason']['summary']}"
    return f"T of batch {one['batch']}: {one['at']!r}"


def _change(one: dict[str, Any]) -> str:
    before = "?" if one["previous"] is None else f"{one['previous']:,}"
    return f"{before} → {one['units']:,}"


def _described(decision: RepeatedDecision) -> str:
    """Return a stimulus in a few words."""
    match decision.stimulus:
        case BatchAdded(batch):
            return f"BatchAdded {batch.batch}"
        case FirstRequestArrived(batch=batch) | ProgressReported(batch=batch) | BatchRemoved(batch=batch):
            return f"{type(decision.stimulus).__name__} {batch}"
    return type(decision.stimulus).__name__
