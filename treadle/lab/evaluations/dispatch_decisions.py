"""Comparison of a dispatcher's decisions with the same decisions repeated from its stimulus log.

A dispatcher is deterministic. So a difference is a defect (state that depends on something outside the stimuli) or a
change of the policy since.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shared.kinds.registry import all_kinds
from shared.store.dispatch_log import NAME, DispatchLogError, DispatchLogReader, LoggedCall, to_builtins

RAISED = "raised"


@dataclass(frozen=True)
class DifferentCommands:
    """The first call whose commands differ now."""

    call: int
    """Its number in the log, from 1."""
    at_s: float
    """After the log's first call."""
    stimuli: list[str]
    then: list[Any] | str
    """Commands, their number if only that was kept, or `raised`."""
    again: list[Any] | str
    """Commands, or the error."""

    def lines(self) -> list[tuple[str, str]]:
        """Commands that differ, then and now, as text; "-" where there is none."""
        sides = ([side] if isinstance(side, str) else side for side in (self.then, self.again))
        pairs = zip_longest(*sides, fillvalue="-")
        return [(str(then), str(again)) for then, again in pairs if then != again]


@dataclass
class DispatchComparison:
    """Comparison of one segment."""

    path: Path
    epoch: int
    continued: bool
    """It begins with a state, not with the term."""
    calls: int = 0
    different: int = 0
    torn: int = 0
    """Bytes of an incomplete value at the end, which was not used."""
    first_at: float = 0.0
    last_at: float = 0.0
    stimuli: Counter[str] = field(default_factory=Counter)
    """Stimulus -> count."""
    commands: Counter[str] = field(default_factory=Counter)
    """Command -> count; answers by their end."""
    raised: str = ""
    """The error with which the log ends, as it is raised now."""
    first: DifferentCommands | None = None

    @property
    def same(self) -> bool:
        return not self.different

    def verdict(self) -> str:
        """Return the verdict in one line."""
        found = "all the same" if self.same else f"{self.different:,} are different now"
        return f"{self.calls:,} calls, {sum(self.commands.values()):,} commands: {found}"

    def document(self) -> dict[str, Any]:
        """Return the document of `treadle replay dispatch --json`."""
        one = self.first
        return {
            "log": str(self.path),
            "epoch": self.epoch,
            "continued": self.continued,
            "seconds": self.last_at - self.first_at,
            "calls": self.calls,
            "same": self.same,
            "different": self.different,
            "torn_bytes": self.torn,
            "raised": self.raised,
            "stimuli": dict(self.stimuli),
            "commands": dict(self.commands),
            "first_difference": None
            if one is None
            else {"call": one.call, "at_s": one.at_s, "stimuli": one.stimuli, "then": one.then, "again": one.again},
        }


def newest_dispatch_log(folder: Path) -> Path:
    """Return the newest segment of a folder.

    Raises:
        DispatchLogError: the folder holds none.
    """
    logs = list(folder.glob(f"*{NAME}-*.log"))
    if not logs:
        raise DispatchLogError(f"{folder} holds no log of a dispatcher: set PROXY_STIMULUS_LOGS to it, run the mesh")
    return max(logs, key=lambda path: path.stat().st_mtime)


def compare_dispatch(path: Path) -> DispatchComparison:
    """Repeat every decision of a segment.

    Raises:
        DispatchLogError: it is no segment of this version.
        OSError: it cannot be read.
    """
    log = DispatchLogReader(path)
    dispatcher = log.header.dispatcher(all_kinds().resources)
    made = DispatchComparison(path, log.header.epoch, bool(log.header.state))
    for call in log.calls():
        made.calls += 1
        made.first_at = made.first_at or call.now
        made.last_at = call.now
        made.stimuli.update(type(one).__name__ for one in call.given)
        try:
            again: list[Any] | str = to_builtins(dispatcher.handle(call.now, *call.given))
        except Exception as error:  # noqa: BLE001  # what the policy raises is the result
            again = f"{type(error).__name__}: {error}"
        then = _then(call, again)
        if isinstance(again, str) and then == RAISED:
            made.raised = again
            break
        if not isinstance(then, str):
            made.commands.update(_label(name, fields) for name, fields in then)
        if again != then:
            _differ(made, call, then, again)
            if isinstance(again, str):
                break  # the state is not defined after an error
    made.torn = log.torn
    return made


def _then(call: LoggedCall, again: list[Any] | str) -> list[Any] | str:
    """Return what the log has of a call's result: commands (those made again, if it has their number), or a text."""
    kept = call.commands
    if kept is None:
        return RAISED
    if isinstance(kept, int):
        return again if not isinstance(again, str) and len(again) == kept else f"{kept} commands"
    return kept


def _differ(made: DispatchComparison, call: LoggedCall, then: list[Any] | str, again: list[Any] | str) -> None:
    made.different += 1
    if made.first is None:
        kinds = [type(one).__name__ for one in call.given]
        made.first = DifferentCommands(made.calls, call.now - made.first_at, kinds, then, again)


def _label(name: str, fields: Any) -> str:
    return f"{name} {fields['ended']}" if name == "AnswerAction" else name


def show_dispatch(made: DispatchComparison, console: Console) -> None:
    """Print what was handled and decided, the verdict, and the first difference."""
    term = "continued from a state" if made.continued else "from the beginning of the term"
    console.print(f"{made.path.name}: epoch {made.epoch}, {term}, {made.last_at - made.first_at:,.1f} s", markup=False)
    table = Table(pad_edge=False)
    for title in ("stimulus", "count", "command", "count"):
        table.add_column(title, justify="right" if title == "count" else "left")
    none = ("", 0)
    for given, decided in zip_longest(made.stimuli.most_common(), made.commands.most_common(), fillvalue=none):
        table.add_row(
            given[0], f"{given[1]:,}" if given[1] else "", decided[0], f"{decided[1]:,}" if decided[1] else ""
        )
    console.print(table)
    if made.torn:
        console.print(f"the last {made.torn:,} bytes are an incomplete value and were not used", markup=False)
    if made.raised:
        console.print(f"the log ends with an error, raised again: {made.raised}", markup=False)
    console.print(made.verdict(), markup=False)
    if made.first is not None:
        one = made.first
        console.print(
            f"first difference: call {one.call:,}, after {one.at_s:,.2f} s: {', '.join(one.stimuli)}", markup=False
        )
        for then, again in one.lines()[:5]:
            console.print(f"  then {then}\n  now  {again}", markup=False)
