"""Use of the granted cores by an action in an environment: its degree of parallelism (ARL-Tangram §4.1).

- `{dop}` is replaced by their number in a bash line, and in the words and variables of a command, but not in `literal`
  ones.
- `TREADLE_DOP` is that number for what a command starts, and for what a bash line with more than one core starts.
- A bash line with more than one core runs `pytest` and `make` that wide (`widening`).
"""

from __future__ import annotations

import shlex
from typing import Final

import msgspec

from services.cpu_manager.environments.widening import widened
from shared.messages.kinds import PLACE, EnvBash, EnvExec, Params

VARIABLE: Final = "TREADLE_DOP"


def filled(params: Params, cores: int) -> Params:
    """Return the parameters with the number of cores filled in; parameters of other kinds unchanged."""
    width = str(cores)
    match params:
        case EnvExec(argv=argv, env=env, literal=literal):
            if not literal:
                argv = [word.replace(PLACE, width) for word in argv]
                env = {name: value.replace(PLACE, width) for name, value in env.items()}
            return msgspec.structs.replace(params, argv=argv, env={VARIABLE: width, **env})
        case EnvBash(line=line, literal=literal):
            line = line if literal else line.replace(PLACE, width)
            return msgspec.structs.replace(params, line=_told(widened(line, cores), width) if cores > 1 else line)
    return params


def _told(line: str, width: str) -> str:
    """Return the line with the variable set while it runs. It sees the last line's `$?`; its own variables stay."""
    return f"{VARIABLE}={width} eval {shlex.quote(line)}" if line.strip() else line
