"""Attacks on resources: processes, memory, disk, output, descriptors, time. On every rung."""

import asyncio
import errno
import os
import re
import resource
import sys
import threading
from dataclasses import replace

import pytest

from services.cpu_manager.sandbox.inside.tasks import tasks_below
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import ExecJob, Limits, PythonJob
from services.cpu_manager.sandbox.rungs import Rung
from services.cpu_manager.sandbox.usage import TreeSampler, Usage
from tests.services.cpu_manager.sandbox.cells import CORE, Attack, nothing_left, processes_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_fork_bomb_stays_within_its_processes(attack: Attack) -> None:
    source = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.001)
"""
    ended = await attack(source, wall_s=1.0, pids=30)
    assert ended.ended_by in {"wall-limit", "signal"}


async def test_a_sample_ends_at_more_processes_than_allowed() -> None:
    """A fork bomb grows faster than it can be counted."""
    chain = "import os\nfor _ in range(40):\n  if os.fork(): os.wait(); os._exit(0)\nprint(flush=True); input()"
    pipe = asyncio.subprocess.PIPE
    top = await asyncio.create_subprocess_exec(sys.executable, "-c", chain, stdin=pipe, stdout=pipe)
    assert top.stdout is not None
    await top.stdout.readline()
    assert TreeSampler(1 << 40).sample(top.pid).processes == 40
    assert TreeSampler(1 << 40, pids=5).sample(top.pid).processes == 6
    await top.communicate(b"")


async def test_threads_count_as_processes() -> None:
    source = """
import _thread, os, time
if os.fork() == 0:
    for _ in range(9): _thread.start_new_thread(time.sleep, (60,))
    print(flush=True); time.sleep(60)
input()
os.kill(0, 9)
"""
    pipe = asyncio.subprocess.PIPE
    top = await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, stdin=pipe, stdout=pipe, start_new_session=True
    )
    assert top.stdout is not None
    await top.stdout.readline()
    assert TreeSampler(1 << 40).sample(top.pid).processes == 10
    assert tasks_below(top.pid, 100) == 10
    assert tasks_below(top.pid, 5) >= 5
    await top.communicate(b"\n")


async def test_a_sample_that_waits_for_a_program_delays_no_other(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory maps of a process that forks are locked, for seconds where many processes share its core."""
    watched = sandbox.ladder.chosen in {Rung.NAMESPACES, Rung.LANDLOCK}
    sample, unlocked, blocked = TreeSampler.sample, threading.Event(), threading.Event()

    def locked(self: TreeSampler, init: int, *, quick: bool = False) -> Usage:
        if not quick and not unlocked.is_set():
            blocked.set()
            unlocked.wait(30)
        return sample(self, init, quick=quick)

    monkeypatch.setattr(TreeSampler, "sample", locked)
    sleep = PythonJob(source="import time; time.sleep(60)", limits=Limits(wall_s=1.0))
    first = asyncio.create_task(sandbox.run(sleep, CORE))
    if watched:
        assert await asyncio.to_thread(blocked.wait, 30)
    others = [await sandbox.run(PythonJob(source="print(1)"), CORE) for _ in range(3)]
    assert [other.stdout for other in others] == [b"1\n"] * 3
    assert (await first).ended_by == "wall-limit"
    assert blocked.is_set() == watched, "a control group counts without memory maps"
    unlocked.set()


async def test_a_shells_fork_bomb_stays_within_its_processes(attack: Attack) -> None:
    ended = await attack(ExecJob(argv=("bash", "-c", ":(){ :|:& };:; wait"), limits=Limits(wall_s=1.0, pids=30)))
    assert ended.ended_by != "lost"


async def test_more_processes_than_allowed_cannot_run_at_once(sandbox: LocalSandbox, attack: Attack) -> None:
    source = """
import os, time
made = 0
for _ in range(100):
    try:
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        made += 1
    except OSError:
        break
print(made, flush=True)
time.sleep(0.3)
"""
    ended = await attack(source, pids=20)
    if sandbox.ladder.chosen is Rung.LANDLOCK and os.geteuid() != 0:  # counts, and ends the program
        assert ended.ended_by == "signal"
        assert re.match(r"ran [1-9]\d+ processes, allowed 20", ended.detail), ended.detail
    else:
        # On root's Landlock rung the slot's former cell, which is just ending, may count with it.
        assert int(ended.stdout) in ({18, 19} if sandbox.ladder.chosen is Rung.LANDLOCK else {19})


async def test_too_many_processes_without_the_watchdogs_count(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel holds the limit, or the cell's init counts."""
    sample = TreeSampler.sample
    monkeypatch.setattr(
        TreeSampler,
        "sample",
        lambda self, init, *, quick=False: replace(sample(self, init, quick=quick), processes=0),
    )
    source = "import os, time\nfor _ in range(30):\n    if os.fork() == 0: time.sleep(9); os._exit(0)\ntime.sleep(9)"
    ended = await sandbox.run(PythonJob(source=source, limits=Limits(pids=20)), CORE)
    if sandbox.ladder.chosen is Rung.LANDLOCK and os.geteuid() != 0:
        assert (ended.ended_by, ended.detail) == ("signal", "ran 21 processes, allowed 20 (init counted)")
    else:
        assert (ended.ended_by, ended.exit_code) == ("exit", 1)
        assert ended.stderr.startswith(b"Traceback")
        assert b"BlockingIOError" in ended.stderr
    assert ended.wall_s < 5
    after = await sandbox.run(PythonJob(source="print(1)", limits=Limits(pids=20)), CORE)
    assert (after.ended_by, after.stdout) == ("exit", b"1\n")


async def test_samples_continue_after_one_has_failed(sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    sample, failures = TreeSampler.sample, iter([ValueError("no number"), OSError(errno.EMFILE, "descriptors")])

    def failing(self: TreeSampler, init: int, *, quick: bool = False) -> Usage:
        if not quick and (failure := next(failures, None)) is not None:
            raise failure
        return sample(self, init, quick=quick)

    monkeypatch.setattr(TreeSampler, "sample", failing)
    messages: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: messages.append(str(context["message"])))
    spin = PythonJob(source="while True: pass", limits=Limits(wall_s=20.0, cpu_s=1.0))
    assert (await sandbox.run(spin, CORE)).ended_by in {"cpu-limit", "signal"}
    asyncio.get_running_loop().set_exception_handler(None)
    watched = sandbox.ladder.chosen in {Rung.NAMESPACES, Rung.LANDLOCK}
    assert messages == (["a sample of a program failed"] if watched else [])


async def test_a_memory_bomb_is_ended_and_named(attack: Attack) -> None:
    source = "hoard = []\nwhile True: hoard.append(bytearray(b'x' * (1 << 20)))"
    ended = await attack(source, memory_bytes=128 << 20)
    # If only RLIMIT_DATA stops a large allocation, Python itself may raise MemoryError first.
    assert ended.ended_by == "memory-limit" or b"MemoryError" in ended.stderr


async def test_a_memory_bomb_of_many_processes_is_ended_and_named(attack: Attack) -> None:
    source = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        hoard = bytearray(b'x' * (40 << 20))
        time.sleep(10)
        os._exit(0)
time.sleep(10)
"""
    ended = await attack(source, memory_bytes=128 << 20, wall_s=8.0)
    assert ended.ended_by == "memory-limit"


@pytest.mark.parametrize("place", [".", "/dev/shm", "/tmp", "/var/tmp"])
async def test_filling_the_disk_stops_at_its_size(attack: Attack, place: str) -> None:
    source = f"""
import time
n = 0
try:
    while True:
        with open({place!r} + f'/fill{{n}}', 'wb') as file:
            file.write(bytes(1 << 20))
        n += 1
except OSError:
    print(n)
    raise SystemExit(0 if n < 20 else 1)
"""
    ended = await attack(source, disk_bytes=16 << 20)
    assert (ended.ended_by, ended.exit_code) == ("exit", 0) or ended.ended_by == "signal", ended


async def test_endless_output_neither_blocks_the_manager_nor_fills_it(attack: Attack) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    job = ExecJob(argv=("yes", "x" * 1000), limits=Limits(wall_s=1.0, output_bytes=1 << 20))
    ended = await attack(job)
    assert ended.ended_by == "wall-limit"
    assert (len(ended.stdout), ended.stdout_truncated) == (1 << 20, True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


async def test_an_endless_report_is_cut(attack: Attack) -> None:
    """The program finds the report's descriptor by trying every number."""
    source = """
import os
for fd in range(3, 1024):
    try:
        for _ in range(64):
            os.write(fd, bytes(1 << 16))
    except OSError:
        pass
"""
    ended = await attack(source)
    assert ended.ended_by == "exit"
    assert len(ended.report) <= 1 << 20


async def test_ignoring_sigterm_does_not_help(attack: Attack) -> None:
    source = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True: pass
"""
    ended = await attack(source, wall_s=0.5)
    assert ended.ended_by == "wall-limit"


async def test_a_daemon_that_forked_twice_does_not_outlive_the_program(attack: Attack) -> None:
    source = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: time.sleep(1)
    os._exit(0)
os.wait()
print('parent done')
"""
    ended = await attack(source)
    assert (ended.ended_by, ended.stdout) == ("exit", b"parent done\n")


async def test_a_stopped_child_does_not_outlive_the_program(attack: Attack) -> None:
    ended = await attack(ExecJob(argv=("bash", "-c", "sleep 500 & kill -STOP $!; echo stopped")))
    assert (ended.ended_by, ended.stdout) == ("exit", b"stopped\n")


async def test_a_huge_number_of_descriptors_is_refused(attack: Attack) -> None:
    source = """
import os
held = []
try:
    while True: held.append(os.open('/dev/null', os.O_RDONLY))
except OSError as error:
    print(error.errno, len(held) < 2000)
"""
    ended = await attack(source)
    assert ended.stdout == b"24 True\n"


async def test_cpu_time_of_unawaited_children_is_limited(attack: Attack) -> None:
    source = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while True: pass
time.sleep(30)
"""
    ended = await attack(source, cpu_s=0.5, wall_s=20.0)
    assert ended.ended_by == "cpu-limit"


async def test_files_left_behind_are_not_seen_by_the_next_program(sandbox: LocalSandbox) -> None:
    litter = """
import os
os.makedirs('deep/er'); open('deep/er/file', 'w').write('x'); os.symlink('/etc/passwd', 'link'); os.mkfifo('pipe')
os.mkdir('closed'); open('closed/file', 'w').write('x'); os.chmod('closed', 0)
"""
    for _ in range(3):
        assert (await sandbox.run(PythonJob(source=litter), CORE)).exit_code == 0
    found = await sandbox.run(ExecJob(argv=("ls", "-A")), CORE)
    assert found.stdout == b""


async def test_an_attack_does_not_disturb_its_neighbour(sandbox: LocalSandbox) -> None:
    bomb = PythonJob(
        source="import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", limits=Limits(wall_s=1.0)
    )
    quiet = PythonJob(source="import os, subprocess; print(subprocess.check_output(['echo', 'well']))")
    attacked = asyncio.create_task(sandbox.run(bomb, CORE))
    await asyncio.sleep(0.3)
    neighbour = await sandbox.run(quiet, CORE)
    assert (neighbour.ended_by, neighbour.stdout) == ("exit", b"b'well\\n'\n"), neighbour
    assert (await attacked).ended_by != "lost"
    await nothing_left(sandbox)


async def test_a_program_at_its_limit_leaves_its_neighbours_their_processes(sandbox: LocalSandbox) -> None:
    """The kernel counts processes by user, so neighbours need users of their own (ADR 0047)."""
    source = """
import os, time
made = 0
try:
    while made < {0}:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
except OSError:
    pass
print(made, flush=True)
time.sleep({1})
"""
    limits = Limits(pids=40, wall_s=30.0)
    ended_above = sandbox.ladder.chosen is Rung.LANDLOCK and os.geteuid() != 0
    wanted = 39 if ended_above else 100  # elsewhere fork fails at the limit
    full = asyncio.create_task(sandbox.run(PythonJob(source=source.format(wanted, 60), limits=limits), CORE))
    async with asyncio.timeout(20):
        while len(processes_of(sandbox)[2]) < 39:  # noqa: ASYNC110  # processes appear, no event does
            await asyncio.sleep(0.02)
    neighbour = await sandbox.run(PythonJob(source=source.format(20, 0), limits=limits), CORE)
    assert (neighbour.ended_by, neighbour.stdout) == ("exit", b"20\n"), neighbour
    full.cancel()
    await asyncio.wait([full])
    await nothing_left(sandbox)


async def test_a_program_that_hides_from_the_oom_killer_still_ends_at_its_memory_limit(
    sandbox: LocalSandbox, attack: Attack
) -> None:
    """The OOM killer may kill init instead. The end is reported as the memory limit all the same."""
    files_count = sandbox.ladder.chosen.control_groups
    script = "echo 0 > /proc/self/oom_score_adj; exec dd if=/dev/zero of=fill bs=1M count=400"
    limits = Limits(memory_bytes=64 << 20, disk_bytes=500 << 20, wall_s=10.0)
    for _ in range(3):
        ended = await attack(ExecJob(argv=("bash", "-c", script), limits=limits))
        assert ended.ended_by == ("memory-limit" if files_count else "exit"), ended


async def test_files_without_content_are_bounded(sandbox: LocalSandbox, attack: Attack) -> None:
    """Inodes: 65,536 of a tmpfs; on the host's disk each file counts as at least 4 KiB of `disk_bytes`."""
    source = """
import os
os.mkdir('many'); folder = os.open('many', os.O_RDONLY)
made = 0
try:
    while made < 200_000: os.mknod(f'empty{made}', dir_fd=folder); made += 1
except OSError as error: print(made, error.errno)
"""
    ended = await attack(source, disk_bytes=16 << 20, wall_s=60.0)
    if sandbox.ladder.chosen is Rung.LANDLOCK:
        assert (ended.ended_by, "of disk, allowed" in ended.detail) == ("signal", True), ended
    else:
        made, number = map(int, ended.stdout.split())
        assert (made < 65_536, number) == (True, errno.ENOSPC), ended


async def test_files_in_a_closed_directory_are_counted(sandbox: LocalSandbox, attack: Attack) -> None:
    source = """
import os, time
os.mkdir('closed')
files = [open(f'closed/{number}', 'wb') for number in range(20)]
os.chmod('closed', 0); os.chmod('.', 0)
for file in files: file.write(bytes(1 << 20)); file.flush()
time.sleep(1)
print('unseen')
"""
    ended = await attack(source, disk_bytes=16 << 20)
    assert ended.stdout == b""
    assert ended.ended_by == ("signal" if sandbox.ladder.chosen is Rung.LANDLOCK else "exit"), ended


async def test_a_tree_deeper_than_a_path_is_not_overlooked(sandbox: LocalSandbox, attack: Attack) -> None:
    source = """
import os, time
for _ in range(60):
    os.mkdir('d' * 200); os.chdir('d' * 200)
open('hidden', 'wb').write(bytes(1 << 20))
time.sleep(1)
print('unseen')
"""
    ended = await attack(source)
    if sandbox.ladder.chosen is Rung.LANDLOCK:
        assert ended.ended_by == "signal", ended
    else:
        assert ended.stdout == b"unseen\n"  # the tmpfs counts it
