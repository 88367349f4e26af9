"""``treadle replay dispatch``."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from shared.store.dispatch_log import DispatchLogError
from treadle.cli.replay_errors import FAILED, WRONG, ReplayError, failing
from treadle.lab.evaluations.dispatch_decisions import compare_dispatch, newest_dispatch_log, show_dispatch


def dispatch(
    log: Annotated[Path, typer.Argument(help="A segment of a dispatcher's log; of a folder, the newest.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Repeat every decision of a leader's dispatcher from its stimulus log, and compare command by command.

    A log holds the configuration of a dispatcher, all stimuli (submissions, reports of nodes, targets, ticks) with
    their times, and all its commands. Equal stimuli give equal commands; a difference is a defect, or a change of the
    policy since. A failed invariant of a leader leaves its log in the folder log of the stack, named
    failed-dispatch-*.log; its last call raises the same error again here. To get all logs, set PROXY_STIMULUS_LOGS to a
    folder.

    --json prints {"log", "epoch", "continued", "seconds", "calls", "same", "different", "torn_bytes", "raised",
    "stimuli", "commands", "first_difference"}.

    Exit status: 0 all the same; 1 something differs; 2 the file is no log of this version.
    """
    with failing():
        try:
            made = compare_dispatch(newest_dispatch_log(log) if log.is_dir() else log)
        except DispatchLogError as error:
            raise ReplayError(str(error), WRONG) from error
        except OSError as error:
            raise ReplayError(f"cannot read {log} ({error.strerror}): name a log", WRONG) from error
    if as_json:
        typer.echo(json.dumps(made.document()))
    else:
        show_dispatch(made, Console(width=None if sys.stdout.isatty() else 150, markup=False))
    if not made.same:
        raise typer.Exit(FAILED)
