"""Tables of the command line: reasons below their rows, and no limit of width if the output is no terminal."""

import json
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.highlighter import JSONHighlighter
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

UNLIMITED: Final = 100_000
"""Width of an output that is no terminal."""
INDENT: Final = 2
"""Spaces before a line below a row."""
GAP: Final = 2
"""Spaces between two columns; one if the console is too narrow."""


class Column(NamedTuple):
    """A column of a `ReasonTable`."""

    title: str
    justify: Literal["left", "right"] = "left"
    below: int = 0
    """Order in which columns move below their rows if the console is too narrow, lowest first. 0: it never moves."""


class ReasonTable:
    """A table that cuts and wraps no value. A row may have a reason, on lines of its own below it.

    Print it with `crop=False`: values of columns that never move may be wider than the console.
    """

    def __init__(self, *columns: Column) -> None:
        self._columns = columns
        self._rows: list[tuple[list[Text], str]] = []

    def add_row(self, cells: Sequence[str], reason: str = "") -> None:
        """Append a row. `cells`: in Rich's markup. `reason`: plain text. What controls the terminal is replaced."""
        self._rows.append(([Text.from_markup(printable(cell)) for cell in cells], printable(reason)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See Rich's console protocol."""
        widths = [
            max(len(column.title), *(cells[index].cell_len for cells, _ in self._rows), 0)
            for index, column in enumerate(self._columns)
        ]
        inside, gap = self._fitting(widths, options.max_width)
        below = [index for index in range(len(widths)) if index not in inside]
        whole = options.update(width=sum(widths[index] for index in inside) + gap * len(inside))

        def line(cells: Sequence[Text]) -> Table:
            row = Table.grid(padding=(0, gap, 0, 0))
            for index in inside:
                row.add_column(width=widths[index], justify=self._columns[index].justify, no_wrap=True)
            row.add_row(*(cells[index] for index in inside))
            return row

        yield from console.render(line([Text(column.title, "bold") for column in self._columns]), whole)
        for cells, reason in self._rows:
            yield from console.render(line(cells), whole)
            moved = Text(", ").join(
                Text.assemble(self._columns[index].title.lower(), " ", cells[index]) for index in below if cells[index]
            )
            for text in (moved, Text(reason)):
                if text:
                    yield Padding(text, (0, 0, 0, INDENT), expand=False)

    def _fitting(self, widths: Sequence[int], most: int) -> tuple[list[int], int]:
        """Return the columns that stay in the rows, and the gap between two."""
        inside = list(range(len(widths)))
        if sum(widths) + GAP * (len(widths) - 1) <= most:
            return inside, GAP
        for index in sorted(inside, key=lambda one: self._columns[one].below):
            if sum(widths[one] for one in inside) + len(inside) - 1 > most and self._columns[index].below:
                inside.remove(index)
        return inside, 1


def output() -> Console:
    """Return the console of the standard output. If it is no terminal, its lines have no limit."""
    console = Console()
    return console if console.is_terminal else Console(width=UNLIMITED)


def printable_json(document: Any) -> Text:
    """Return a document as JSON with highlights. Characters that control the terminal are escaped, as JSON allows."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    escaped = (one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)
    return JSONHighlighter()("".join(escaped))


def printable(text: str) -> str:
    """Return a text on one line, without characters that control the terminal."""
    line = " ".join(text.split())
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in line)
