"""Check that a line's parameters fit its workflow: the proxy's rule, applied before anything is submitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from shared.api.tasks import StageTemplate
from shared.messages.kinds import KINDS
from treadle.grading.format import Complaint, Line, explain


def check_lines(lines: Iterable[tuple[int, Line]], stages: Sequence[StageTemplate]) -> Iterator[Complaint]:
    """Yield complaints, line by line, at most one per parameter and stage."""
    for number, line in lines:
        for where, what in _check(line, stages):
            yield Complaint(number, where, what)


def _check(line: Line, stages: Sequence[StageTemplate]) -> Iterator[tuple[str, str]]:
    known = {name for stage in stages for name in KINDS[stage.kind].__struct_fields__}
    for name in sorted(line.params.keys() - known):
        yield f"params.{name}", f"no stage has this parameter; there are {', '.join(sorted(known))}"
    for name in sorted(line.stage_params.keys() - {stage.name for stage in stages}):
        yield f"stage_params.{name}", f"no such stage; there are {', '.join(stage.name for stage in stages)}"
    for stage in stages:
        problem = _misfit(line, stage)
        if problem is not None:
            yield problem


def _misfit(line: Line, stage: StageTemplate) -> tuple[str, str] | None:
    kind = KINDS[stage.kind]
    own = line.stage_params.get(stage.name, {})
    try:
        msgspec.convert(stage.merged(line.params, own), kind)
    except msgspec.ValidationError as error:
        where, what = explain(error, kind)
        return _place(where, stage, own), f"{what} (stage {stage.name!r}, {stage.kind})"
    return None


def _place(where: str, stage: StageTemplate, own: Mapping[str, Any]) -> str:
    name = where.partition(".")[0].partition("[")[0]
    return f"stage_params.{stage.name}.{where}" if name in own else f"params.{where}"
