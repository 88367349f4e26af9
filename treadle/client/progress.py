"""Progress bar of a run, with its verdicts so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from treadle.client.answers import Result
from treadle.client.verdicts import Verdict, verdict_of

STYLES: dict[Verdict, str] = {
    "passed": "green",
    "failed": "red",
    "error": "magenta",
    "timeout": "yellow",
    "scored": "cyan",
    "masked": "bold white on red",
}


BESIDE_THE_BAR = 85
"""Columns of title, counts and time. The bar takes the rest."""


class ProgressBar:
    """A progress bar on the terminal. Without a terminal, its last state is printed once."""

    def __init__(self, total: int, title: str = "", console: Console | None = None) -> None:
        """Prepare the bar. The `with` block shows it.

        Args:
            total: requests of the batch, or of several.
            title: shown before the bar.
            console: output. None: stderr.
        """
        console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=min(40, max(8, console.width - BESIDE_THE_BAR))),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[counts]}"),
            console=console,
        )
        self._bar: TaskID = self._progress.add_task(title, total=total, counts="")
        self._counts: Counter[Verdict] = Counter()
        self._submitted = 0
        self._total = total

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def submitted(self, requests: int) -> None:
        self._submitted += requests
        self._show()

    def answered(self, results: Sequence[Result]) -> None:
        self._counts.update(verdict_of(result) for result in results)
        self._progress.advance(self._bar, len(results))
        self._show()

    def _show(self) -> None:
        counts = [
            f"[{style}]{self._counts[verdict]} {verdict}[/]"
            for verdict, style in STYLES.items()
            if self._counts[verdict]
        ]
        if self._submitted < self._total:
            counts.append(f"[dim]{self._submitted} submitted[/]")
        self._progress.update(self._bar, counts="  ".join(counts))
