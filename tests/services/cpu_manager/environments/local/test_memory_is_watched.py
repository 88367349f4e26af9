"""Memory limits of an environment on every rung: a control group counts all of it, a watch what /proc shows."""

import pytest

from services.cpu_manager.environments.local.runtime import CellEnvironment, LocalRuntime
from services.cpu_manager.environments.protocol import BadEnvironment
from shared.messages.environments import EnvironmentSpec
from tests.services.cpu_manager.environments.local.acting import CORE, SMALL, act, output_of
from tests.services.cpu_manager.environments.local.test_first_threads import EXIT

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_set_up_lines_are_held_to_it(runtime: LocalRuntime) -> None:
    eats = "python3 -c 'x = bytearray(80 << 20); x[::4096] = x[::4096]; import time; time.sleep(60)'"
    spec = EnvironmentSpec(memory_mb=96, disk_mb=16, pids=64, setup=[f"{eats} & {eats} & {eats} & wait -n"])
    with pytest.raises(BadEnvironment, match="failed: exit code 137"):
        await runtime.create("one", spec, CORE)


async def test_a_program_whose_first_thread_has_ended_is_held_to_it(environment: CellEnvironment) -> None:
    program = f"""
import ctypes, mmap, threading, time
def work():
    size = {SMALL.memory_mb + 100} << 20
    held = mmap.mmap(-1, size)
    for at in range(0, size, 4096):
        held[at] = 1
    time.sleep(60)
threading.Thread(target=work).start()
{EXIT}
"""
    end = await act(environment, "exec", argv=["python3", "-c", program])
    assert (end.ended_by, end.output["exit_code"], end.output["memory_exceeded"]) == ("done", 137, True)
    assert await output_of(environment, "echo well") == "well"
