"""Promises of a cell to honest programs, on every rung of this machine and user."""

import asyncio
import os
import signal
import time

import pytest

from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import ExecJob, JobCut, Limits, PythonJob
from services.cpu_manager.sandbox.rungs import Rung
from tests.services.cpu_manager.sandbox.cells import CORE, nothing_left

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_python_runs_as_main_with_its_arguments_and_input(sandbox: LocalSandbox) -> None:
    source = "import sys\nif __name__ == '__main__':\n    print(sys.argv[1:], input(), sys.stdin.read())"
    ended = await sandbox.run(PythonJob(source=source, argv=("a", "b"), stdin=b"one\ntwo"), CORE)
    assert (ended.ended_by, ended.exit_code, ended.stdout, ended.stderr) == ("exit", 0, b"['a', 'b'] one two\n", b"")
    assert ended.cpu_s > 0
    assert ended.wall_s > 0
    assert ended.peak_memory_bytes > 0


@pytest.mark.parametrize(
    ("source", "code", "stderr"),
    [
        ("import sys; sys.exit(7)", 7, b""),
        ("exit()", 0, b""),
        ("raise SystemExit('no luck')", 1, b"no luck\n"),
        ("import atexit; atexit.register(print, 'bye'); import os; os._exit(9)", 9, b""),
        ("import threading, time\nthreading.Thread(target=lambda: time.sleep(0.05)).start()", 0, b""),
    ],
)
async def test_python_ends_with_the_interpreters_exit_codes(
    sandbox: LocalSandbox, source: str, code: int, stderr: bytes
) -> None:
    ended = await sandbox.run(PythonJob(source=source), CORE)
    assert (ended.ended_by, ended.exit_code, ended.stderr) == ("exit", code, stderr)


async def test_an_uncaught_exception_prints_the_interpreters_traceback_and_ends_with_one(sandbox: LocalSandbox) -> None:
    ended = await sandbox.run(PythonJob(source="def f():\n    return 1 / 0\n\nf()\n"), CORE)
    lines = ended.stderr.decode().splitlines()
    assert ended.exit_code == 1
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith('main.py", line 4, in <module>')
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "harnesses" not in ended.stderr.decode()


async def test_a_syntax_error_is_shown_as_the_interpreter_shows_it(sandbox: LocalSandbox) -> None:
    ended = await sandbox.run(PythonJob(source="x = (\n"), CORE)
    assert ended.exit_code == 1
    assert ended.stderr.decode().splitlines()[-1] == "SyntaxError: '(' was never closed"


async def test_a_program_that_kills_itself_ends_by_its_signal(sandbox: LocalSandbox) -> None:
    ended = await sandbox.run(ExecJob(argv=("bash", "-c", "kill -ABRT $$")), CORE)
    assert (ended.ended_by, ended.signal, ended.exit_code) == ("signal", signal.SIGABRT, None)


async def test_files_are_written_executed_and_fetched(sandbox: LocalSandbox) -> None:
    script = b"#!/bin/bash\ncat deep/in.txt > out.txt; echo $GREETING\n"
    job = ExecJob(
        argv=("./go",),
        files={"go": script, "deep/in.txt": b"content"},
        executable=("go",),
        env={"GREETING": "hello"},
        fetch=("out.txt", "missing", "deep"),
    )
    ended = await sandbox.run(job, CORE)
    assert (ended.exit_code, ended.stdout, ended.files) == (0, b"hello\n", {"out.txt": b"content"})


async def test_large_files_are_fetched_whole(sandbox: LocalSandbox) -> None:
    source = "open('big', 'wb').write(bytes(range(256)) * 20000)"
    ended = await sandbox.run(PythonJob(source=source, fetch=("big",)), CORE)
    assert ended.files["big"] == bytes(range(256)) * 20000


async def test_a_missing_program_ends_with_127(sandbox: LocalSandbox) -> None:
    ended = await sandbox.run(ExecJob(argv=("no-such-program",)), CORE)
    assert (ended.ended_by, ended.exit_code) == ("exit", 127)
    assert b"not found" in ended.stderr


async def test_large_input_blocks_nothing_even_if_never_read(sandbox: LocalSandbox) -> None:
    data = bytes(20 << 20)
    count = "import sys; print(sum(map(len, iter(lambda: sys.stdin.buffer.read(1 << 20), b''))))"
    read = await sandbox.run(PythonJob(source=count, stdin=data), CORE)
    ignored = await sandbox.run(PythonJob(source="print('never read')", stdin=data), CORE)
    assert int(read.stdout) == 20 << 20
    assert ignored.stdout == b"never read\n"


async def test_output_beyond_its_limit_is_dropped_and_flagged(sandbox: LocalSandbox) -> None:
    limits = Limits(output_bytes=1000)
    source = "import sys\nsys.stdout.write('x' * 3_000_000)\nsys.stderr.write('y' * 1000)"
    ended = await sandbox.run(PythonJob(source=source, limits=limits), CORE)
    assert (ended.ended_by, ended.exit_code) == ("exit", 0)
    assert (ended.stdout, ended.stdout_truncated) == (b"x" * 1000, True)
    assert (ended.stderr, ended.stderr_truncated) == (b"y" * 1000, False)


async def test_standard_streams_can_be_opened_again_by_name(sandbox: LocalSandbox) -> None:
    job = ExecJob(argv=("bash", "-c", "cat /dev/stdin > /dev/stdout; echo err > /dev/stderr"), stdin=b"in")
    ended = await sandbox.run(job, CORE)
    assert (ended.stdout, ended.stderr) == (b"in", b"err\n")


async def test_the_wall_limit_ends_a_sleeper(sandbox: LocalSandbox) -> None:
    ended = await sandbox.run(PythonJob(source="import time; time.sleep(60)", limits=Limits(wall_s=0.2)), CORE)
    assert ended.ended_by == "wall-limit"
    assert 0.2 <= ended.wall_s < 10
    assert ended.detail


async def test_the_cpu_limit_counts_the_whole_tree(sandbox: LocalSandbox) -> None:
    source = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    ended = await sandbox.run(PythonJob(source=source, limits=Limits(cpu_s=0.5, wall_s=30)), CORE)
    assert ended.ended_by == "cpu-limit"
    assert 0.5 <= ended.cpu_s < 10


async def test_cpu_time_of_children_is_counted(sandbox: LocalSandbox) -> None:
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    source = f"import os\nif os.fork() == 0:\n    exec({burn!r})\n    os._exit(0)\nos.wait()"
    ended = await sandbox.run(PythonJob(source=source), CORE)
    assert ended.ended_by == "exit"
    assert ended.cpu_s >= 0.2


async def test_peak_memory_is_reported(sandbox: LocalSandbox) -> None:
    ended = await sandbox.run(PythonJob(source="b = bytearray(100 << 20); print(len(b))"), CORE)
    assert ended.ended_by == "exit"
    assert 100 << 20 <= ended.peak_memory_bytes < 200 << 20


async def test_peak_memory_counts_a_shared_page_once_and_every_processs_own(sandbox: LocalSandbox) -> None:
    source = """
import os, time
shared = b'x' * (60 << 20)
for _ in range(4):
    if not os.fork():
        own = b'y' * (20 << 20)
        time.sleep(0.5)
        os._exit(0)
for _ in range(4): os.wait()
"""
    ended = await sandbox.run(PythonJob(source=source), CORE)
    assert 140 << 20 <= ended.peak_memory_bytes < 240 << 20, ended  # the sum of the five is above 400 MiB


async def test_a_program_runs_on_exactly_the_cores_it_was_given(sandbox: LocalSandbox) -> None:
    cores = frozenset(sorted(os.sched_getaffinity(0))[-1:])
    ended = await sandbox.run(PythonJob(source="import os; print(sorted(os.sched_getaffinity(0)))"), cores)
    assert ended.stdout.decode().strip() == str(sorted(cores))


async def test_multiprocessing_works_inside_the_limits(sandbox: LocalSandbox) -> None:
    source = "import multiprocessing as m\nwith m.Pool(2) as p:\n    print(p.map(abs, [-1, -2, 3]))"
    ended = await sandbox.run(PythonJob(source=source), CORE)
    if sandbox.ladder.chosen is Rung.LANDLOCK:
        assert b"PermissionError" in ended.stderr, "named semaphores need /dev/shm, which it does not give"
    else:
        assert (ended.exit_code, ended.stdout) == (0, b"[1, 2, 3]\n"), ended.stderr


async def test_asyncio_and_subprocesses_work(sandbox: LocalSandbox) -> None:
    source = """
import asyncio, subprocess
async def f(): return 5
print(asyncio.run(f()), subprocess.check_output(['echo', 'x']))
"""
    ended = await sandbox.run(PythonJob(source=source), CORE)
    assert ended.stdout == b"5 b'x\\n'\n", ended.stderr


async def test_pipelines_of_a_shell(sandbox: LocalSandbox) -> None:
    """Dash handles the end of a child without SA_RESTART, and forks meanwhile."""
    script = "i=0; while [ $i -lt 100 ]; do /bin/true | /bin/true | /bin/true; i=$((i+1)); done; echo $i"
    ended = await sandbox.run(ExecJob(argv=("sh", "-c", script)), CORE)
    assert (ended.stdout, ended.stderr, ended.exit_code) == (b"100\n", b"", 0)


async def test_timers_interrupt_no_fork(sandbox: LocalSandbox) -> None:
    source = """
import os, signal, threading
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for _ in range(100):
    if os.fork() == 0: os._exit(0)
    os.wait()
    thread = threading.Thread(target=int); thread.start(); thread.join()
print('forked')
"""
    ended = await sandbox.run(PythonJob(source=source), CORE)
    assert (ended.stdout, ended.stderr) == (b"forked\n", b"")


async def test_two_programs_draw_different_random_numbers(sandbox: LocalSandbox) -> None:
    source = "import random; print(random.random())"
    first, second = await asyncio.gather(*(sandbox.run(PythonJob(source=source), CORE) for _ in range(2)))
    assert first.stdout != second.stdout


async def test_cancelling_kills_the_tree_before_it_returns(sandbox: LocalSandbox) -> None:
    running = asyncio.create_task(sandbox.run(ExecJob(argv=("bash", "-c", "sleep 98765 & sleep 98765")), CORE))
    await asyncio.sleep(0.2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await nothing_left(sandbox)


async def test_a_job_that_is_cut_reports_what_it_has_used(sandbox: LocalSandbox) -> None:
    job = PythonJob(source="import time\nwhile time.process_time() < 30: pass")
    running = asyncio.create_task(sandbox.run(job, CORE))
    await asyncio.sleep(1.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError) as cut:
        await running
    (used,) = cut.value.args
    assert isinstance(used, JobCut)
    assert 0.05 < used.cpu_s < 30


async def test_cancelling_at_once_leaves_nothing(sandbox: LocalSandbox) -> None:
    for _ in range(20):
        running = asyncio.create_task(sandbox.run(PythonJob(source="import time; time.sleep(60)"), CORE))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await nothing_left(sandbox)


async def test_concurrent_jobs_are_separate(sandbox: LocalSandbox) -> None:
    jobs = [
        PythonJob(source="print(input(), open('f').read())", stdin=b"%d" % n, files={"f": b"%d" % n}) for n in range(30)
    ]
    ended = await asyncio.gather(*(sandbox.run(job, CORE) for job in jobs))
    assert [one.stdout for one in ended] == [b"%d %d\n" % (n, n) for n in range(30)]


async def test_a_dead_zygote_loses_its_job_and_is_started_again(sandbox: LocalSandbox) -> None:
    job = PythonJob(source="import time; time.sleep(30)", zygote="mortal")
    running = asyncio.create_task(sandbox.run(job, CORE))
    async with asyncio.timeout(30):
        while "mortal" not in sandbox.zygotes():  # noqa: ASYNC110  # a process has no event to wait for
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    os.kill(sandbox.zygotes()["mortal"], signal.SIGKILL)
    assert (await running).ended_by == "lost"
    again = await sandbox.run(PythonJob(source="print(1)", zygote="mortal"), CORE)
    assert again.stdout == b"1\n"


@pytest.mark.parametrize(
    "job",
    [
        PythonJob(files={"../escape": b""}),
        PythonJob(files={"/etc/passwd": b""}),
        ExecJob(argv=("true",), fetch=("../../etc/passwd",)),
        ExecJob(argv=("true",), files={"a/../../b": b""}),
        PythonJob(files={"n" * 300: b""}),
        PythonJob(files={"a/": b""}),
        PythonJob(files={"a": b"", "a/b": b""}),
        PythonJob(files={"a//b": b"", "a/b": b""}),
        ExecJob(argv=()),
        ExecJob(argv=("true", "a\0b")),
        PythonJob(harness="no-such-harness"),
        PythonJob(files={"big": bytes(2000)}, limits=Limits(disk_bytes=1000)),
    ],
    ids=lambda job: type(job).__name__,
)
async def test_a_malformed_job_is_rejected(sandbox: LocalSandbox, job: PythonJob | ExecJob) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        await sandbox.run(job, CORE)


async def test_the_wall_timer_starts_with_the_program_not_with_its_zygote(sandbox: LocalSandbox) -> None:
    job = PythonJob(source="print('quick')", zygote="slow to start", limits=Limits(wall_s=0.3))
    before = time.monotonic()
    ended = await sandbox.run(job, CORE)
    assert ended.ended_by == "exit"
    assert ended.wall_s <= time.monotonic() - before
