"""The program's own process, from the last wall to its end. Only its program file and standard streams are open."""

# Plain calls and no path objects: each page written after a fork is copied.
# ruff: noqa: PTH101, PTH103, PTH120, PTH123

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import os
import resource
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Final, NoReturn

from services.cpu_manager.sandbox.inside import wire
from services.cpu_manager.sandbox.walls import landlock
from shared.walls import syscalls

if TYPE_CHECKING:
    from services.cpu_manager.sandbox.inside.cell import ZygoteContext
    from services.cpu_manager.sandbox.inside.supervisor import SeccompSupervisor

_OPEN_FILES: Final = 1024
_PENDING_SIGNALS: Final = 1024
_DESCRIPTORS: Final = 5
"""Number of descriptors with a start request: standard input, output, error; program file; report."""
_CANNOT_EXECUTE: Final = 126
_NOT_FOUND: Final = 127
_signal: Final = sys.modules["_signal"]
"""`signal` without its enumerations, which would touch forty more pages."""


def run(
    context: ZygoteContext, slot: wire.SlotPlan, control: socket.socket, supervisor: SeccompSupervisor | None
) -> NoReturn:
    """Wait for a start request, complete the walls, report the start, read the program file, and run it."""
    code = 1
    try:
        os.setsid()
        if context.plan.namespaces:
            drop_privileges(context.plan, slot)
        else:
            _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # no namespace ends with init
            if supervisor is not None:
                supervisor.reset_signals()
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
        if context.ruleset >= 0:
            landlock.restrict(context.ruleset)
        if context.plan.control_groups:
            _raise_oom_score()
        packet, received = wire.receive(control, _DESCRIPTORS)
        if not packet:
            os._exit(0)  # the spare was never needed
        start_request = wire.unpack(packet)
        assert isinstance(start_request, wire.StartRequest)
        os.sched_setaffinity(0, start_request.cores)
        # On the Landlock rung init has the same user and counts too.
        set_limits(start_request, own=0 if context.plan.namespaces else 1)
        listener = context.filter.install()
        if supervisor is not None:
            supervisor.send_listener(listener, 0 if context.plan.privileged else start_request.pids)
        stdin, stdout, stderr, program_file, report = received
        for target, descriptor in enumerate((stdin, stdout, stderr)):
            os.dup2(descriptor, target)
        report = _hide_descriptor(report)
        wire.send(control, wire.pack_started(time.monotonic()))
    except BaseException as error:  # noqa: BLE001  # report it to the manager: the program has not begun
        wire.send(control, wire.FAILED + repr(error).encode())
        os._exit(1)
    try:
        control.detach()
        syscalls.close_all_but(0, 1, 2, program_file, report)
        code = _run_program(context, slot, program_file, report)
    finally:
        os._exit(code)


def drop_privileges(plan: wire.WallPlan, slot: wire.SlotPlan) -> None:
    """Become a user who owns nothing, without capabilities, permanently."""
    if plan.privileged:
        os.setresgid(slot.uid, slot.uid, slot.uid)
        os.setresuid(slot.uid, slot.uid, slot.uid)
        if plan.namespaces:
            return  # leaving uid 0 has dropped all capabilities: the namespace began with no inheritable ones
    elif plan.namespaces:
        # Ids stay unmapped: the program runs as nobody, and its processes are counted for this namespace only.
        syscalls.unshare(syscalls.CLONE_NEWUSER)
    syscalls.drop_capabilities()


def set_limits(start_request: wire.StartRequest, own: int) -> None:
    """Set the request's limits. `own`: processes of ours that the kernel counts for the same user."""
    limits = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, start_request.cpu_s or resource.RLIM_INFINITY),
        (resource.RLIMIT_FSIZE, start_request.file_bytes),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_MEMLOCK, 64 << 10),
        # Queued signals and timers count by user, which may be the manager's user.
        (resource.RLIMIT_SIGPENDING, min(_PENDING_SIGNALS, resource.getrlimit(resource.RLIMIT_SIGPENDING)[1])),
    ]
    if start_request.data_bytes:
        limits.append((resource.RLIMIT_DATA, start_request.data_bytes))
    if start_request.counted_pids:
        most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        counted = start_request.counted_pids + own
        limits.append((resource.RLIMIT_NPROC, counted if most == resource.RLIM_INFINITY else min(counted, most)))
    for kind, value in limits:
        resource.setrlimit(kind, (value, value))


def _raise_oom_score() -> None:
    """Make the OOM killer choose the program. In the cell's control group init must survive to report the end."""
    descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.write(descriptor, b"1000")
    os.close(descriptor)


def _hide_descriptor(descriptor: int) -> int:
    """Move a descriptor to a random number that is hard to guess; it closes on exec."""
    start = 256 + int.from_bytes(os.urandom(2), "little") % 640
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, start)


def _run_program(context: ZygoteContext, slot: wire.SlotPlan, descriptor: int, report: int) -> int:
    program = wire.unpack(_read_all(descriptor))
    assert isinstance(program, wire.PythonProgram | wire.ExecProgram)
    if slot.home != os.environ["HOME"]:
        os.environ.update(HOME=slot.home, TMPDIR=slot.home, PWD=slot.home)
    try:
        _write_files(program.files)
        if isinstance(program, wire.ExecProgram):
            return _execute(program)
    except OSError as error:
        os.write(2, f"sandbox: {error}\n".encode())
        return _CANNOT_EXECUTE
    return _interpret(context, slot, program, report)


def _read_all(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    parts: list[bytes] = []
    while size > 0 and (part := os.pread(descriptor, size, sum(map(len, parts)))):
        parts.append(part)
        size -= len(part)
    os.close(descriptor)
    return b"".join(parts)


def _write_files(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        if directory := os.path.dirname(name):
            os.makedirs(directory, exist_ok=True)
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with open(descriptor, "wb", buffering=0) as file:
            view = memoryview(content)
            while view:
                view = view[file.write(view) :]


def _execute(program: wire.ExecProgram) -> int:
    for name in program.executable:
        os.chmod(name, 0o755)
    environment = {**os.environ, **program.environment}
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # Python ignores or handles them; other programs expect the default
    try:
        os.execvpe(program.argv[0], program.argv, environment)
    except FileNotFoundError:
        os.write(2, f"sandbox: {program.argv[0]}: not found\n".encode())
        return _NOT_FOUND


def _interpret(context: ZygoteContext, slot: wire.SlotPlan, program: wire.PythonProgram, report: int) -> int:
    """Run a harness as the interpreter runs its main program: exit codes, threads, exit handlers, flushes."""
    gc.enable()
    sys.argv[:] = [f"{slot.home}/main.py", *program.argv]
    sys.path.insert(0, slot.home)
    if randomness := sys.modules.get("numpy.random"):
        # Forks would share the zygote's random stream. `random` reseeds itself.
        randomness.seed(int.from_bytes(os.urandom(4), "little"))

    def send(content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[os.write(report, view) :]

    try:
        context.harnesses[program.harness](program.source, program.payload, send)
        code = 0
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException as error:  # noqa: BLE001  # as the interpreter does at its top
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    return _finish(code)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    with contextlib.suppress(Exception):
        print(error.code, file=sys.stderr)  # noqa: T201  # what `sys.exit("text")` means
    return 1


def _finish(code: int) -> int:
    """Do what the interpreter does at its end, without destroying the modules."""
    with contextlib.suppress(Exception):
        if threading := sys.modules.get("threading"):
            threading._shutdown()
        atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except Exception:  # noqa: BLE001  # the program replaced or broke its streams
        return code or 120
    return code
