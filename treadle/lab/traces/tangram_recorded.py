"""Recorded coding agents for the replay: seconds of the model and of the tool in each turn.

No recording has both for every turn, so each is completed:

- `swe-agent`: execution seconds of each command and no generation: the median generation of the sessions below.
- `mini-swe-agent`: seconds from one model call to the next, model and tool together. A quarter counts as the tool, with
  about the same median as the execution seconds above (0.3 s).
- `sessions`: generation seconds, and the wait for each tool's result in whole seconds, which may hold a person's
  approval: of a longer wait one minute counts. A message of a person begins another session.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

from treadle.lab.replay.tangram.recorded import Recording
from treadle.lab.traces.rewards import TraceError

Turns = list[tuple[float, float]]
"""(model, tool) seconds of each turn."""

COMMANDS: Final = Path("agents/mini_swe_agent_commands.jsonl.gz")
EXECUTIONS: Final = Path("agents/swe_agent_steps.jsonl.gz")
SESSIONS: Final = Path("traces/agentic_coding_sessions.jsonl.gz")

TOOL_PART: Final = 0.25
LONGEST_TOOL_S: Final = 60.0
FEWEST_TURNS: Final = 5
"""Fewest turns of a session: shorter ones are answers to questions, not episodes."""
MOST_TURNS: Final = 60
"""Most turns of a recording; the rest is left out."""


def read_recordings(data: Path) -> tuple[Recording, ...]:
    """Return all recordings of a data folder.

    Raises:
        TraceError: a file has another format than its README describes.
        OSError: it cannot be opened.
    """
    sessions = _read(data / SESSIONS, lambda line: _runs(line["requests"]))
    usual_s = median([model_s for turns in sessions for model_s, _ in turns] or [0.0])
    commands = _read(data / COMMANDS, lambda line: [_parted(line["steps"])])
    executions = _read(
        data / EXECUTIONS, lambda line: [[(usual_s, float(step["execution_time_s"])) for step in line["steps"]]]
    )
    found = {"mini-swe-agent": commands, "sessions": sessions, "swe-agent": executions}
    return tuple(
        Recording(source, tuple(turns[:MOST_TURNS])) for source, many in found.items() for turns in many if turns
    )


def _parted(steps: list[dict[str, Any]]) -> Turns:
    """Return turns from the seconds between model calls; there are none after the last call."""
    gaps = (float(step["gap_s"]) for step in steps if step.get("gap_s") is not None)
    return [(gap_s * (1.0 - TOOL_PART), gap_s * TOOL_PART) for gap_s in gaps]


def _runs(requests: list[dict[str, Any]]) -> Iterator[Turns]:
    """Yield the turns between two messages of a person, if there are enough.

    A turn is a generation and the wait for its tool, which the next request has. A generation without time gets the
    session's median.
    """
    asked = [one for one in requests if one["type"] != "subagent"]
    usual_s = median([one["api_time"] for one in asked if one.get("api_time")] or [0.0])
    turns: Turns = []
    for one, following in zip(asked, [*asked[1:], None], strict=True):
        if following is not None and "tool_result" in following["input_types"]:
            waited_s = min(LONGEST_TOOL_S, float(following.get("think_time") or 0.0))
            turns.append((float(one.get("api_time") or usual_s), waited_s))
            continue
        if len(turns) >= FEWEST_TURNS:
            yield turns
        turns = []


def _read(path: Path, turns_of: Callable[[dict[str, Any]], Iterable[Turns]]) -> list[Turns]:
    """Return the turns of all lines of a file, in order."""
    read, found = 0, list[Turns]()
    try:
        with gzip.open(path, "rb") as lines:
            for line in lines:
                read += 1
                found += turns_of(json.loads(line))
    except (gzip.BadGzipFile, zlib.error, EOFError, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path}:{read}: is not as its README describes ({error!r}): get it again") from error
    return found
