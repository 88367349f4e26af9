"""One cell runs many programs: none may find a trace of an earlier one, and a cell with a trace is not reused."""

import asyncio
import itertools
import os
import secrets
import signal

import pytest

from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import Exit, Limits, PythonJob
from tests.services.cpu_manager.sandbox.cells import CORE, describe, nothing_left, processes_of
from tests.shared.bus.soon import soon

pytestmark = pytest.mark.asyncio(loop_scope="module")

_SIZES = itertools.count(32 << 20, 1 << 20)


class OwnCells:
    """Programs in cells that no other test uses: cells are kept by the size of their private directory."""

    def __init__(self, sandbox: LocalSandbox) -> None:
        self._sandbox = sandbox
        self._disk_bytes = next(_SIZES)

    async def run(self, source: str, fetch: tuple[str, ...] = (), **limits: float) -> Exit:
        bounds = Limits(**{"wall_s": 5.0, "disk_bytes": self._disk_bytes, **limits})  # type: ignore[arg-type]
        # The import chooses the zygote: all of these programs come from the same.
        source = f"import ctypes\n{source}"
        return await self._sandbox.run(PythonJob(source=source, limits=bounds, fetch=fetch), CORE)

    async def inits(self) -> set[int]:
        """The cells of this size, once those of other sizes are gone and all that were ordered exist."""
        for _ in range(100):
            await nothing_left(self._sandbox)
            found = set(processes_of(self._sandbox)[0])
            if len(found) == self._sandbox.spares():
                break
            await asyncio.sleep(0.02)
        return found

    async def until_ended(self, cells: set[int]) -> None:
        """Wait until one of these cells is there no more."""

        async def is_ended() -> bool:
            return not cells <= await self.inits()

        await soon(is_ended)


@pytest.fixture
def own_cells(sandbox: LocalSandbox) -> OwnCells:
    return OwnCells(sandbox)


async def used_again(own_cells: OwnCells, source: str, wall_s: float = 5.0) -> bool:
    """Return whether the cell that ran this program is reused."""
    await own_cells.run("pass")
    await own_cells.run("pass")
    before = await own_cells.inits()
    await own_cells.run(source, wall_s=wall_s)
    return before <= await own_cells.inits()


async def test_a_cell_runs_one_program_after_another(sandbox: LocalSandbox, own_cells: OwnCells) -> None:
    await own_cells.run("pass")
    await own_cells.run("pass")
    before = await own_cells.inits()
    for number in range(10):
        assert (await own_cells.run(f"print({number})")).stdout == f"{number}\n".encode()
    assert await own_cells.inits() == before
    await nothing_left(sandbox)


@pytest.mark.parametrize(
    "source", ["import sys; sys.exit(3)", "import os; os.abort()", "1 / 0", "import os; os._exit(0)"]
)
async def test_a_cell_is_reused_after_a_program_that_ends_by_itself(own_cells: OwnCells, source: str) -> None:
    assert await used_again(own_cells, source)


async def test_a_cell_whose_program_had_to_be_killed_is_not_used_again(own_cells: OwnCells) -> None:
    assert not await used_again(own_cells, "while True: pass", wall_s=0.3)


async def test_a_cell_whose_files_were_fetched_is_not_used_again(own_cells: OwnCells) -> None:
    await own_cells.run("pass")
    await own_cells.run("pass")
    before = await own_cells.inits()
    ended = await own_cells.run("open('result', 'w').write('mine')", fetch=("result",))
    assert ended.files == {"result": b"mine"}
    await own_cells.run("pass")
    await own_cells.until_ended(before)


async def test_the_next_program_finds_an_empty_directory_as_large_as_before(own_cells: OwnCells) -> None:
    fill = """
import os
os.makedirs('deep/er'); os.mkfifo('pipe'); os.symlink('/etc/passwd', 'link')
try:
    with open('full', 'wb') as file:
        for _ in range(16): file.write(b'x' * (1 << 20)); file.flush()
    os.chmod('deep', 0)
except OSError as error: print(error)
print('filled')
"""
    assert (await own_cells.run(fill)).stdout == b"filled\n"
    listed = await own_cells.run("import os; print(os.listdir('.'), os.getcwd() == os.environ['HOME'])")
    assert listed.stdout == b"['main.py'] True\n", listed
    assert (await own_cells.run(fill)).stdout == b"filled\n"


async def test_the_next_program_finds_nothing_of_the_last_in_its_memory(own_cells: OwnCells) -> None:
    secret = secrets.token_hex(16)
    await own_cells.run("pass")
    spoken = await own_cells.run(f"word = '{secret}' * 50000; print(len(word))")
    assert spoken.stdout == b"1600000\n"
    search = """
half, other = '%s', '%s'
found = 0
try: lines = open('/proc/self/maps').read().splitlines()
except OSError: lines = []
with open('/proc/self/mem', 'rb', 0) if lines else open('/dev/null', 'rb') as memory:
    for line in lines:
        first, last = (int(end, 16) for end in line.split()[0].split('-'))
        if ' r' not in line or last - first > 1 << 30: continue
        try: memory.seek(first); text = memory.read(last - first)
        except (OSError, OverflowError, ValueError): continue
        # The word is put together only here, so that this source does not hold it.
        found += text.count((other[::-1] + half[::-1])[::-1].encode())
        del text
print('searched', found < 20)
"""
    ended = await own_cells.run(search % (secret[:16], secret[16:]))
    assert ended.stdout == b"searched True\n", ended


async def test_the_next_program_finds_no_process_of_the_last(sandbox: LocalSandbox, own_cells: OwnCells) -> None:
    hide = """
import os, signal, time
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        for number in range(1, 32):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        if os.fork() == 0: time.sleep(60)
        os._exit(0)
print('hidden')
"""
    assert (await own_cells.run(hide)).stdout == b"hidden\n"
    look = """
import os
try: print(sorted(int(name) for name in os.listdir('/proc') if name.isdigit()) == [1, os.getpid()])
except OSError: print(True)
"""
    assert (await own_cells.run(look)).stdout == b"True\n"
    await nothing_left(sandbox)


_OBJECTS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
key, made = 0x7EAD1E, 0o1600
kinds = {'shm': (libc.shmget, 4096), 'sem': (libc.semget, 1), 'msg': (libc.msgget, None)}
def get(kind, flags):
    call, size = kinds[kind]
    return call(key, flags) if size is None else call(key, size, flags)
"""


@pytest.mark.parametrize("kind", ["shm", "sem", "msg"])
async def test_the_next_program_finds_no_shared_object_of_the_last(own_cells: OwnCells, kind: str) -> None:
    await own_cells.run("pass")
    await own_cells.run("pass")
    before = await own_cells.inits()
    made = await own_cells.run(f"{_OBJECTS}print(get('{kind}', made) >= 0)")
    assert (await own_cells.run(f"{_OBJECTS}print(get('{kind}', 0))")).stdout == b"-1\n"
    if made.stdout == b"True\n":  # on the Landlock rung none can be made
        await own_cells.until_ended(before)  # it holds the object; another one has taken its place meanwhile


async def test_the_next_program_finds_no_socket_name_of_the_last(own_cells: OwnCells) -> None:
    bind = """
import os, socket, time
try:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind('\\0treadle-trace')
    listening.listen()
    if os.fork() == 0: time.sleep(60)
    print('bound')
except OSError as error: print('bound')
"""
    for _ in range(3):  # the name is free again each time
        assert (await own_cells.run(bind)).stdout == b"bound\n"


async def test_limits_and_attributes_of_the_last_program_are_reset(own_cells: OwnCells) -> None:
    source = """
import gc, os, resource, signal, sys
state = (os.umask(0o022), os.nice(0), signal.getsignal(signal.SIGINT) is signal.default_int_handler,
         signal.pthread_sigmask(signal.SIG_BLOCK, ()), resource.getrlimit(resource.RLIMIT_CPU), gc.isenabled(),
         os.getcwd(), 'TRACE' in os.environ, sys.flags.isolated, 'trace' in sys.modules)
print(state)
os.umask(0); os.nice(5); signal.signal(signal.SIGINT, signal.SIG_IGN); signal.pthread_sigmask(signal.SIG_BLOCK, {10})
resource.setrlimit(resource.RLIMIT_CPU, (1, 1)); gc.disable(); os.chdir('/'); os.environ['TRACE'] = 'x'
sys.modules['trace'] = sys
"""
    first = await own_cells.run(source)
    assert first.exit_code == 0, first.stderr
    assert (await own_cells.run(source)).stdout == first.stdout


async def test_the_init_of_a_cell_cannot_be_reached_by_its_programs(own_cells: OwnCells) -> None:
    reach = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
init = os.getppid()
for number in range(1, 65):
    if number in (signal.SIGCHLD,): continue
    try: os.kill(init, number)
    except OSError: pass
opened = []
for name in ('mem', 'environ', 'maps', 'fd', 'fdinfo', 'cwd', 'root', 'ns/mnt', 'oom_score_adj', 'clear_refs'):
    path = f'/proc/{init}/{name}'
    for flags in (os.O_RDONLY, os.O_RDWR):
        try:
            if name in ('fd', 'fdinfo', 'cwd', 'root'): opened.append((name, os.listdir(path)))
            elif name == 'ns/mnt': opened.append((name, os.readlink(path)))
            else: os.close(os.open(path, flags)); opened.append((name, flags))
        except OSError: pass
import resource
for number in range(16):
    try: resource.prlimit(init, number, (0, 0)); opened.append(('limit', number))
    except OSError: pass
for which, who in ((os.PRIO_PROCESS, init), (os.PRIO_PGRP, 1), (os.PRIO_USER, os.getuid()), (os.PRIO_USER, 0)):
    try: os.setpriority(which, who, 19); opened.append(('priority', which))
    except OSError: pass
print(opened, libc.ptrace(16, init, 0, 0))
"""
    await own_cells.run("pass")
    await own_cells.run("pass")
    before = await own_cells.inits()
    ended = await own_cells.run(reach)
    assert (ended.ended_by, ended.exit_code) == ("exit", 0), ended
    # `oom_score_adj` is readable by all.
    assert ended.stdout in (b"[] -1\n", b"[('oom_score_adj', 0)] -1\n"), ended.stdout
    await own_cells.run("pass")
    assert before <= await own_cells.inits()


async def test_each_programs_usage_is_its_own(own_cells: OwnCells) -> None:
    """CPU time and memory start anew: what earlier programs of the cell used does not count against a limit."""
    burn = (
        "import time\nuntil = time.process_time() + 0.3\nwhile time.process_time() < until: pass\nx = b'x' * (60 << 20)"
    )
    for _ in range(4):
        ended = await own_cells.run(burn, cpu_s=0.8, memory_bytes=256 << 20)
        assert ended.ended_by == "exit", ended
        assert 0.25 < ended.cpu_s < 0.7
        assert 60 << 20 < ended.peak_memory_bytes < 200 << 20
    light = await own_cells.run("pass", cpu_s=0.8, memory_bytes=256 << 20)
    assert light.cpu_s < 0.2
    assert light.peak_memory_bytes < ended.peak_memory_bytes - (50 << 20)


_IN_FLIGHT = """
import array, os, socket
try:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    named = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    named.bind('\\0treadle-in-flight')
    memory = os.memfd_create('left')
    for _ in range(60): os.write(memory, b'x' * (1 << 20))
    numbers = array.array('i', [right.fileno(), left.fileno(), named.fileno(), memory])
    left.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
except OSError as error: pass
print('sent')
"""


async def test_sockets_in_flight_leave_neither_names_nor_memory(own_cells: OwnCells) -> None:
    """Sockets sent into each other live until the kernel's collector comes by."""
    for _ in range(3):
        assert (await own_cells.run(_IN_FLIGHT, memory_bytes=256 << 20)).stdout == b"sent\n"
        available_rungs = await own_cells.run("x = b'x' * (150 << 20); print(len(x))", memory_bytes=256 << 20)
        assert available_rungs.ended_by == "exit", available_rungs
    bind = """
import socket
try: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).bind('\\0treadle-in-flight')
except OSError as error: print(error.strerror == 'Address already in use')
"""
    assert (await own_cells.run(bind)).stdout in (b"", b"False\n")


async def test_a_directory_that_is_hard_to_clear_is_not_used_again(own_cells: OwnCells) -> None:
    plant = """
import os
try: os.setxattr('.', 'user.note', b'planted')
except OSError: pass
open('json.py', 'w').write('print(1)')
home = os.getcwd()
for _ in range(1100):
    os.mkdir('d'); os.chdir('d')
os.chmod(home, 0)
print('planted')
"""
    look = "import os; print(os.listdir('.'), os.listxattr('.')); open('own', 'w').write('x')"
    for _ in range(2):
        planted = await own_cells.run(plant)
        assert planted.stdout == b"planted\n", planted
        assert (await own_cells.run(look)).stdout == b"['main.py'] []\n"


async def test_a_deep_tree_stops_no_watchdog(own_cells: OwnCells) -> None:
    dig = "import os, time\nfor _ in range(1100):\n    os.mkdir('d'); os.chdir('d')\ntime.sleep(30)"
    ended = await own_cells.run(dig, wall_s=1.0)
    assert ended.ended_by == "wall-limit", ended


async def test_a_program_runs_although_waiting_cells_were_killed(sandbox: LocalSandbox, own_cells: OwnCells) -> None:
    await own_cells.run("pass")
    await own_cells.run("pass")
    inits = await own_cells.inits()
    for pid in inits:
        os.kill(pid, signal.SIGKILL)
    waiting = set(processes_of(sandbox)[2])
    for pid in waiting:  # on the Landlock rung nothing ends them with their init
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(30):  # else the program may begin in one that is about to end, and end with it
        while any(describe(pid) is not None for pid in inits | waiting):  # noqa: ASYNC110  # processes of others
            await asyncio.sleep(0.01)
    assert (await own_cells.run("print(1)")).stdout == b"1\n"


async def test_late_files_do_not_count_as_a_late_program(own_cells: OwnCells) -> None:
    """The wall limit is the program's; bringing its files back may take longer."""
    write = "open('big', 'wb').write(bytes(24 << 20))"
    ended = await own_cells.run(write, fetch=("big",), wall_s=0.5)
    assert (ended.ended_by, ended.exit_code, len(ended.files["big"])) == ("exit", 0, 24 << 20)


async def test_a_cell_is_replaced_after_its_last_program(own_cells: OwnCells) -> None:
    await own_cells.run("pass")
    await own_cells.run("pass")
    before = await own_cells.inits()
    for _ in range(2 * 256):
        assert (await own_cells.run("pass")).exit_code == 0
    assert not before & await own_cells.inits()
