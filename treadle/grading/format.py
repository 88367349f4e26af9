"""The grading file: JSON Lines, gzipped or not; an optional header, then a reward request per line (docs/grade.md)."""

from __future__ import annotations

import difflib
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from pydantic import ValidationError

from shared.api.tasks import Task

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
TaskName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(?!\n)$")]
Expected = Literal["passed", "failed", "error", "timeout"] | bool
"""A recorded verdict. `true` is passed; `false` is any other."""

GZIP_MAGIC = b"\x1f\x8b"
MAX_DEPTH = 100
"""Most nested containers. The bound is our own, because a decoder's depends on Python's version and on its stack.
Without it, one part might read what another could not write."""


class GradingLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One program or answer to be graded."""

    id: Name
    """Unique in the file. It is sent as the request_id, so grading twice with one `--key` is harmless."""
    params: dict[str, Any] = {}
    """Override each stage's params. A field goes to every stage whose kind has it."""
    stage_params: dict[str, dict[str, Any]] = {}
    """Stage name -> parameters for that stage alone."""
    group: Name | None = None
    """Samples of one prompt share it. Rewards are reported by group, as GRPO compares them."""
    priority: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)] = 0.0
    """Lower goes first inside the batch."""
    expect: Expected | None = None
    """The recorded verdict, for comparison."""
    meta: dict[str, Any] = {}
    """The user's own data. It is never sent, but copied to `--out`."""


class FileHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line, if it has the field `treadle`."""

    treadle: Literal[1]
    """Version of this format."""
    task: TaskName | None = None
    """The task to grade under. `--task` overrides it."""
    workflow: dict[str, Any] | None = None
    """The body of `PUT /v1/tasks/{task}`: declares the task before grading."""


class Complaint(NamedTuple):
    """An error in a file, with advice."""

    line: int
    """1-based."""
    field: str
    """Dotted path, e.g. `params.code`; empty: the whole line."""
    what: str

    def __str__(self) -> str:
        return f"line {self.line}, {f'field {self.field}' if self.field else 'the whole line'}: {self.what}"


@dataclass(slots=True)
class GradingFile:
    """A file as read."""

    lines: list[tuple[int, GradingLine]] = field(default_factory=list)
    """Valid lines, each with its number."""
    complaints: list[Complaint] = field(default_factory=list)
    header: int | None = None
    """Number of the header's line."""
    task: str | None = None
    workflow: Task | None = None


ADVICE = {"expect": "write passed, failed, error, timeout, true or false"}
"""Field -> advice about a wrong value. For other fields the type is enough."""

_line = msgspec.json.Decoder(GradingLine)
_header = msgspec.json.Decoder(FileHeader)
_located = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_unknown = re.compile(r"Object contains unknown field `(?P<name>.*)`")
_missing = re.compile(r"Object missing required field `(?P<name>.*)`")


def read_file(path: Path) -> GradingFile:
    """Read and validate a file. All of it is held in memory.

    Raises:
        OSError: it cannot be read, or is a damaged gzip file.
    """
    data = path.read_bytes()
    if data.startswith(GZIP_MAGIC):
        try:
            data = gzip.decompress(data)
        except (EOFError, zlib.error) as error:
            raise OSError(f"{path} is a damaged gzip file ({error}): copy it again") from error
    return parse(data.split(b"\n"))


def parse(raw_lines: Iterable[bytes]) -> GradingFile:
    """Validate lines. Blank ones are skipped, but counted. O(bytes)."""
    found = GradingFile()
    seen: dict[str, int] = {}
    first = True
    for number, raw in enumerate(raw_lines, 1):
        if not raw.strip():
            continue
        try:
            if _too_deep(raw):
                found.complaints.append(Complaint(number, "", f"nested more than {MAX_DEPTH} deep; flatten it"))
            elif not _is_header(raw):
                found.complaints += _take_line(found, seen, number, raw)
            elif first:
                found.complaints += _read_header(found, number, raw)
            else:
                found.complaints.append(_late_header(number))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found.complaints.append(Complaint(number, "", f"not JSON ({error}); write one JSON object on one line"))
        first = False
    return found


def _too_deep(raw: bytes) -> bool:
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:  # nearly every line; avoids a second parse
        return False
    try:
        level = _containers([msgspec.json.decode(raw)])
    except RecursionError:
        return True
    for _ in range(MAX_DEPTH):  # level by level, because a recursive walk would have a bound of its own
        level = _containers(inner for each in level for inner in (each.values() if isinstance(each, dict) else each))
    return bool(level)


def _containers(values: Iterable[Any]) -> list[dict[str, Any] | list[Any]]:
    return [value for value in values if isinstance(value, (dict, list))]


def _is_header(raw: bytes) -> bool:
    if b'"treadle"' not in raw:  # nearly every line; avoids a second parse
        return False
    fields = msgspec.json.decode(raw)
    return isinstance(fields, dict) and "treadle" in fields


def _take_line(found: GradingFile, seen: dict[str, int], number: int, raw: bytes) -> Iterator[Complaint]:
    try:
        line = _line.decode(raw)
    except msgspec.ValidationError as error:
        where, what = explain(error, GradingLine)
        yield Complaint(number, where, what)
    else:
        if line.id in seen:
            yield Complaint(number, "id", f"{line.id!r} is the id of line {seen[line.id]} already; ids must differ")
            return
        seen[line.id] = number
        found.lines.append((number, line))


def _read_header(found: GradingFile, number: int, raw: bytes) -> Iterator[Complaint]:
    found.header = number
    try:
        header = _header.decode(raw)
    except msgspec.ValidationError as error:
        where, what = explain(error, FileHeader)
        yield Complaint(number, where, what)
    else:
        found.task = header.task
        if header.workflow is not None:
            yield from _read_workflow(found, number, header.workflow)


def _read_workflow(found: GradingFile, number: int, workflow: dict[str, Any]) -> Iterator[Complaint]:
    try:
        found.workflow = Task.model_validate(workflow)
    except ValidationError as error:
        for each in error.errors():
            where = ".".join(("workflow", *(str(part) for part in each["loc"])))
            yield Complaint(
                number, where, f"{each['msg'].removeprefix('Value error, ')}; it is the body of PUT /v1/tasks/{{task}}"
            )


def _late_header(number: int) -> Complaint:
    return Complaint(number, "treadle", "a header must be the first line; move it there, or drop it")


def explain(error: msgspec.ValidationError, model: type[msgspec.Struct]) -> tuple[str, str]:
    """Return a msgspec error's field, and a sentence with the error and advice."""
    match = _located.fullmatch(str(error))
    what, path = (match["what"], match["path"] or "") if match else (str(error), "")
    if unknown := _unknown.fullmatch(what):
        return _joined(path, unknown["name"]), _no_such_field(unknown["name"], model)
    if missing := _missing.fullmatch(what):
        return _joined(path, missing["name"]), "missing; add it"
    return path, f"{what[:1].lower()}{what[1:]}; {ADVICE.get(path, 'change the value')}"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _no_such_field(name: str, model: type[msgspec.Struct]) -> str:
    fields = model.__struct_fields__
    near = difflib.get_close_matches(name, fields, n=1)
    guess = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(fields)};"
    own = " your own data goes under `meta`" if "meta" in fields else " drop it"
    return f"no such field; {guess}{own}"
