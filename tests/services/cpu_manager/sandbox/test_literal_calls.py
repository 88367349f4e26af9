"""Every call of the literal list, made by number from inside a real cell, on every rung that this user has here."""

import errno
import json
import os

import pytest

from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import PythonJob
from services.cpu_manager.sandbox.rungs import Rung
from tests.services.cpu_manager.sandbox.cells import CORE
from tests.services.cpu_manager.sandbox.literal_calls import ALLOWED, NOT_TO_BE_TRIED, REFUSED, RUNGS

pytestmark = pytest.mark.asyncio(loop_scope="module")

_TRY = """
import ctypes, errno, json, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(one) for one in arguments))
    return errno.errorcode.get(ctypes.get_errno(), '?') if result == -1 else 'done'
print(json.dumps({name: call(number, arguments) for name, number, arguments in json.load(sys.stdin)}))
"""
_NOTHING = [-1] * 6
_ARGUMENTS = {
    # Arguments with which the kernel would allow it. (It refuses mounts without a filter too: see test_seccomp.)
    "unshare": [0] * 6,
    "personality": [0xFFFFFFFF] + [0] * 5,
    # Allowed, and with these of no consequence.
    "umask": [0o22] + [0] * 5,
    "prctl": [3] + [0] * 5,
    "prlimit64": [0, 0, 0, 0, 0, 0],
    "setpriority": [0, 0, 0, 0, 0, 0],
    "rt_sigqueueinfo": [0, 0, 0, 0, 0, 0],
    "fcntl": [-1, 1, 0, 0, 0, 0],
    "madvise": [0, 0, 0, 0, 0, 0],
}


def rung_letter(sandbox: LocalSandbox) -> str:
    rung = sandbox.ladder.chosen
    if rung.control_groups:
        return "G"
    return "N" if rung is Rung.NAMESPACES else "L"


async def rung_failures(sandbox: LocalSandbox, names: dict[str, int]) -> dict[str, str]:
    calls = [(name, number, _ARGUMENTS.get(name, _NOTHING)) for name, number in names.items()]
    ended = await sandbox.run(PythonJob(source=_TRY, stdin=json.dumps(calls).encode()), CORE)
    assert ended.exit_code == 0, ended
    found: dict[str, str] = json.loads(ended.stdout)
    return found


async def test_every_refused_call_is_refused_from_inside(sandbox: LocalSandbox) -> None:
    column, machine = RUNGS.index(rung_letter(sandbox)), os.uname().machine
    wanted = {call.name: call.answers[column] for call in REFUSED if call.number(machine) is not None}
    available_rungs = {name: answer for name, answer in wanted.items() if hasattr(errno, answer)}
    numbers = {call.name: number for call in REFUSED if (number := call.number(machine)) is not None}
    assert await rung_failures(sandbox, {name: numbers[name] for name in available_rungs}) == {
        name: errno.errorcode[getattr(errno, answer)] for name, answer in available_rungs.items()
    }


async def test_allowed_calls_reach_the_kernel(sandbox: LocalSandbox) -> None:
    """Meaningless arguments get the kernel's own errors: none of those that the filter gives."""
    machine = os.uname().machine
    numbers = {
        call.name: number
        for call in ALLOWED
        if call.name not in NOT_TO_BE_TRIED and (number := call.number(machine)) is not None
    }
    found = await rung_failures(sandbox, numbers)
    assert {name: answer for name, answer in found.items() if answer in {"EPERM", "EMFILE", "ENOSYS"}} == {}
