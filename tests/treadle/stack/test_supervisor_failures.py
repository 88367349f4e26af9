"""A supervisor whose own task fails stops with an error, with everything that it started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shared.runtime.stack_state import Phase, read_state

FAILING = """
import asyncio, sys
from datetime import timedelta
from pathlib import Path
from treadle.stack.home import open_home
from treadle.stack.logs import ServiceLogs
from treadle.stack.plan import ProcessSpec, StackPlan
from treadle.stack.process import Launch
from treadle.stack.supervisor import supervise

probes = 0

async def probe(pid):
    global probes
    probes += 1
    if probes > 1:
        raise ZeroDivisionError(f"watching {pid}")

home = open_home(Path(sys.argv[1]))
sleeper = ProcessSpec(Launch("sleeper", ("sleep", "300"), {"PATH": "/usr/bin:/bin"}), "none", probe)
prepare = Launch("prepare", ("true",), {"PATH": "/usr/bin:/bin"})
plan = StackPlan(home, (sleeper,), (), prepare, (), timedelta(seconds=30), 1 << 20)
import treadle.stack.service_runner
treadle.stack.service_runner.HEALTHY_PROBE_S = 0.1
sys.exit(asyncio.run(supervise(plan, ServiceLogs(home.log, limit_bytes=1 << 20))))
"""


def test_a_failed_runner_ends_the_stack_and_is_named(stack_home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILING, str(stack_home)], timeout=60, check=False, capture_output=True, text=True
    )
    assert done.returncode == 1, done
    state = read_state(stack_home)
    assert state is not None
    assert state.phase is Phase.FAILED
    assert state.error.startswith("the supervisor failed (run sleeper): ZeroDivisionError: watching ")
    assert "ZeroDivisionError" in (stack_home / "log" / "treadle.log").read_text()
    watched = int(state.error.rpartition(" ")[2])
    assert not Path(f"/proc/{watched}").exists()
