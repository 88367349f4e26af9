"""Attacks on secrets, processes, sockets and the kernel. On every rung."""

# ruff: noqa: ASYNC240  # small local files, in tests

import asyncio
import os
import secrets
import socket
from pathlib import Path

import pytest

from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import ExecJob, PythonJob
from tests.services.cpu_manager.sandbox.cells import CORE, Attack

pytestmark = pytest.mark.asyncio(loop_scope="module")

_CALL = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*arguments)
    return errno.errorcode[ctypes.get_errno()] if result < 0 else 'done'
"""


async def test_no_visible_environment_has_the_services_secret(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = secrets.token_hex(16)
    monkeypatch.setenv("TREADLE_SECRET", secret)
    os.environb[b"TREADLE_OTHER"] = secret.encode()
    source = """
import glob, os
print(os.environ)
for path in glob.glob('/proc/[0-9]*/environ') + ['/proc/self/environ', '/proc/1/environ']:
    try: print(path, open(path, 'rb').read())
    except OSError as error: print(path, error)
"""
    try:
        ended = await attack(source)
    finally:
        del os.environ["TREADLE_OTHER"]
    assert ended.exit_code == 0
    assert secret.encode() not in ended.stdout


async def test_no_other_process_can_be_seen_or_read(attack: Attack) -> None:
    source = """
import os
opened = []
for pid in [*range(1, 4000), os.getppid()]:
    if pid == os.getpid(): continue
    for name in ('mem', 'environ', 'maps', 'fd', 'cwd', 'root', 'task/1/mem'):
        path = f'/proc/{pid}/{name}'
        try:
            if name in ('fd', 'cwd', 'root'): os.listdir(path)
            else: open(path, 'rb').read(1)
            opened.append(path)
        except OSError: pass
print(opened)
"""
    ended = await attack(source)
    assert ended.stdout == b"[]\n", ended


async def test_the_zygotes_and_the_inits_memory_cannot_be_written(attack: Attack) -> None:
    source = """
import os
for pid in {1, 2, os.getppid(), os.getpid() - 1} - {os.getpid()}:
    for mode in ('r+b', 'wb'):
        try: open(f'/proc/{pid}/mem', mode); print('opened', pid)
        except OSError: pass
"""
    ended = await attack(source)
    assert (ended.exit_code, ended.stdout) == (0, b"")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("process_vm_readv", "310, os.getppid(), 0, 0, 0, 0, 0"),
        ("process_vm_writev", "311, os.getppid(), 0, 0, 0, 0, 0"),
        ("ptrace attach", "101, 16, os.getppid(), 0, 0"),
        ("ptrace traceme", "101, 0, 0, 0, 0"),
        ("pidfd_getfd", "438, 0, 0, 0"),
        ("mount", "165, b'none', b'/tmp', b'tmpfs', 0, 0"),
        ("umount", "166, b'/proc', 2"),
        ("pivot_root", "155, b'.', b'.'"),
        ("chroot", "161, b'/'"),
        ("open_tree", "428, -100, b'/', 1"),
        ("move_mount", "429, -100, b'/', -100, b'/', 0"),
        ("fsopen", "430, b'tmpfs', 0"),
        ("unshare user", "272, 0x10000000"),
        ("unshare mount", "272, 0x20000"),
        ("setns", "308, 0, 0"),
        ("clone into a user namespace", "56, 0x10000000 | 17, 0, 0, 0, 0"),
        ("keyctl", "250, 0, -3, 0"),
        ("add_key", "248, b'user', b'x', b'y', 1, -3"),
        ("request_key", "249, b'user', b'x', 0, -3"),
        ("bpf", "321, 0, 0, 0"),
        ("io_uring_setup", "425, 8, 0"),
        ("userfaultfd", "323, 0"),
        ("perf_event_open", "298, 0, 0, -1, -1, 0"),
        ("kexec_load", "246, 0, 0, 0, 0"),
        ("init_module", "175, 0, 0, b''"),
        ("sched_setaffinity", "203, 0, 8, b'\\xff' * 8"),
        ("sched_setscheduler", "144, 0, 1, b'\\1\\0\\0\\0'"),
        ("personality", "135, 0x0040000"),
        ("open_by_handle_at", "304, -100, 0, 0"),
        ("name_to_handle_at", "303, -100, b'/', 0, 0, 0"),
        ("terminal input", "16, 0, 0x5412, b'x'"),
    ],
)
async def test_a_forbidden_call_is_refused(attack: Attack, name: str, arguments: str) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers here are x86_64's; test_seccomp checks aarch64's filter")
    ended = await attack(f"{_CALL}print(call({arguments}))")
    assert ended.stdout == b"EPERM\n", (name, ended)


async def test_clone3_is_absent_so_that_no_namespace_hides_in_its_flags(attack: Attack) -> None:
    ended = await attack(f"{_CALL}print(call(435, 0, 0))")
    assert ended.stdout == b"ENOSYS\n"


async def test_calls_of_another_architecture_kill_the_caller(attack: Attack) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("x32 is a mode of x86_64")
    ended = await attack(f"{_CALL}print(call(0x40000000 + 39))")
    assert (ended.ended_by, ended.stdout) == ("signal", b"")


async def test_the_affinity_cannot_be_changed_by_any_call(attack: Attack) -> None:
    source = """
import os, subprocess
before = os.sched_getaffinity(0)
try: os.sched_setaffinity(0, range(os.cpu_count()))
except OSError: pass
subprocess.run(['taskset', '-p', 'ffff', str(os.getpid())], capture_output=True)
print(os.sched_getaffinity(0) == before)
"""
    assert (await attack(source)).stdout == b"True\n"


async def test_signals_reach_no_process_outside(attack: Attack) -> None:
    source = """
import os, signal
parent = os.getppid()
for target in {1, 2, parent, 0, -1, -parent} - {os.getpid(), 0, 1, -1}:
    for number in (0, signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
        try: os.kill(target, number)
        except OSError: pass
for target in (1, parent):
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
        try:
            if target: os.kill(target, number)
        except OSError: pass
try: os.kill(-1, signal.SIGKILL)
except OSError: pass
print('survived')
"""
    ended = await attack(source)
    assert (ended.ended_by, ended.stdout) == ("exit", b"survived\n"), ended


async def test_signals_to_every_process_id_have_no_effect(sandbox: LocalSandbox, attack: Attack) -> None:
    victims = [os.getpid(), *sandbox.zygotes().values()]
    source = f"""
import os, signal
for pid in {victims!r} + list(range(3, 3000)):
    if pid == os.getpid(): continue
    try: os.kill(pid, signal.SIGKILL); print('killed', pid)
    except OSError: pass
"""
    before = sandbox.zygotes()
    ended = await attack(source)
    assert ended.stdout == b""
    assert {name: pid for name, pid in sandbox.zygotes().items() if name in before} == before


async def test_a_signal_to_a_descriptors_owner_reaches_no_process_outside(
    sandbox: LocalSandbox, attack: Attack
) -> None:
    victims = [os.getpid(), *sandbox.zygotes().values()]
    source = f"""
import fcntl, os, signal, socket
F_SETSIG = 10
for pid in {victims!r} + [1, os.getppid()]:
    left, right = socket.socketpair()
    try:
        fcntl.fcntl(left, fcntl.F_SETOWN, pid)
        fcntl.fcntl(left, F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(left, fcntl.F_SETFL, fcntl.fcntl(left, fcntl.F_GETFL) | os.O_ASYNC)
        right.send(b'x')
    except OSError: pass
print('tried')
"""
    before = sandbox.zygotes()
    ended = await attack(source)
    assert ended.stdout == b"tried\n"
    assert {name: pid for name, pid in sandbox.zygotes().items() if name in before} == before


async def test_no_socket_reaches_the_network_or_the_kernel(attack: Attack) -> None:
    source = """
import socket
for family in range(0, 46):
    if family == socket.AF_UNIX: continue
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try: socket.socket(family, kind); print('made', family, kind)
        except OSError: pass
"""
    ended = await attack(source)
    assert (ended.exit_code, ended.stdout) == (0, b"")


async def test_no_named_or_abstract_socket_of_the_host_can_be_reached(attack: Attack, tmp_path: Path) -> None:
    name = f"treadle-test-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as named:
        abstract.bind(f"\0{name}")
        abstract.listen()
        named.bind(str(tmp_path / "door"))
        named.listen()
        tmp_path.chmod(0o777)
        (tmp_path / "door").chmod(0o777)
        source = f"""
import socket
for address in ({f"{chr(0)}{name}"!r}, {str(tmp_path / "door")!r}, '/run/docker.sock', '/var/run/docker.sock'):
    try: socket.socket(socket.AF_UNIX).connect(address); print('reached', address)
    except OSError: pass
"""
        ended = await attack(source)
    assert (ended.exit_code, ended.stdout) == (0, b"")


async def test_neighbours_share_no_abstract_socket(sandbox: LocalSandbox) -> None:
    listen = """
import socket, time
try:
    server = socket.socket(socket.AF_UNIX); server.bind('\\0meeting'); server.listen(); server.settimeout(2)
    server.accept(); print('met')
except OSError: print('alone')
"""
    call = """
import socket, time
for _ in range(100):
    try: socket.socket(socket.AF_UNIX).connect('\\0meeting'); print('met')
    except OSError: time.sleep(0.01)
"""
    ended = await asyncio.gather(*(sandbox.run(PythonJob(source=source), CORE) for source in (listen, call)))
    assert [one.stdout for one in ended] == [b"alone\n", b""]


async def test_neighbours_share_no_memory(sandbox: LocalSandbox) -> None:
    source = f"""{_CALL}
import time
key = 4711
shared = libc.shmget(key, 4096, 0o1666)
time.sleep(0.5)
print(open('/proc/sysvipc/shm').read().count(' 4711 ') if shared >= 0 else 0)
"""
    ended = await asyncio.gather(*(sandbox.run(PythonJob(source=source), CORE) for _ in range(2)))
    # Each sees its own segment; where nothing counts its memory there is none to be had.
    seen = b"1\n" if sandbox.ladder.chosen.control_groups else b"0\n"
    assert [one.stdout for one in ended] == [seen, seen]


async def test_programs_that_change_user_gain_nothing(attack: Attack) -> None:
    script = """
for program in $(find /usr/bin /usr/sbin -perm -4000 2>/dev/null); do echo "$program" >> found; done
su root -c id; sudo -n id; newgrp root -c id; mount -t tmpfs x /tmp; echo; grep -E 'Cap|NoNewPrivs' /proc/self/status
"""
    ended = await attack(ExecJob(argv=("bash", "-c", script)))
    assert b"uid=0" not in ended.stdout
    if b"CapEff" in ended.stdout:
        for name in (b"CapInh", b"CapPrm", b"CapEff", b"CapAmb"):
            assert name + b":\t0000000000000000\n" in ended.stdout
        assert b"NoNewPrivs:\t1" in ended.stdout


async def test_only_the_standard_descriptors_and_its_report_are_open(attack: Attack) -> None:
    source = """
import os, stat
names = {0: 'in', 1: 'out', 2: 'err'}
for fd in range(1024):
    try: kind = os.fstat(fd).st_mode
    except OSError: continue
    print(names.get(fd, 'report' if fd >= 256 and stat.S_ISFIFO(kind) else fd))
"""
    ended = await attack(source)
    assert ended.stdout.decode().split() == ["in", "out", "err", "report"]


async def test_an_executed_program_inherits_no_report(attack: Attack) -> None:
    source = "import subprocess, sys; subprocess.run([sys.executable, '-c', CODE], close_fds=False)"
    code = "import os\nfor fd in range(3, 1024):\n  try: os.fstat(fd); print(fd)\n  except OSError: pass"
    ended = await attack(source.replace("CODE", repr(code)))
    assert (ended.exit_code, ended.stdout) == (0, b"")


async def test_what_a_program_does_to_its_interpreter_ends_with_it(attack: Attack) -> None:
    source = """
import builtins, gc, os, sys, json
for module in list(sys.modules.values()):
    try: module.__dict__.clear()
    except Exception: pass
"""
    await attack(source)
    scribble = """
import ctypes, json
ctypes.memset(id(json), 0x41, 64)
ctypes.memset(id(json.dumps), 0x41, 64)
json.dumps({})
"""
    ended = await attack(scribble)
    assert ended.ended_by in {"signal", "exit"}
