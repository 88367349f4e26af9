"""Attacks on files of the host, of the service and of other actions. On every rung."""

# ruff: noqa: ASYNC240  # small local files, in tests

import asyncio
from pathlib import Path

import pytest

from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import ExecJob, Limits, PythonJob
from tests.services.cpu_manager.sandbox.cells import CORE, Attack

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    "path",
    ["/etc/shadow", "/etc/hostname", "/root/.bashrc", "/home", "/var/log", "/sys/kernel", "/run", "/proc/kcore"],
)
async def test_the_hosts_files_are_not_there(attack: Attack, path: str) -> None:
    source = f"""
import os
try: print(os.listdir({path!r}) if os.path.isdir({path!r}) else open({path!r}).read(1))
except OSError: pass
"""
    ended = await attack(source)
    assert (ended.exit_code, ended.stdout) == (0, b"")


async def test_the_services_own_files_are_not_there(attack: Attack) -> None:
    source = f"""
try: print(open({str(Path(__file__).resolve())!r}).read())
except OSError: pass
try:
    import services
    print('imported', services)
except ImportError: pass
"""
    ended = await attack(source)
    assert (ended.exit_code, ended.stdout) == (0, b"")


async def test_the_toolchain_cannot_be_written(attack: Attack) -> None:
    source = """
import os, sys
for place in ('/', '/usr', '/usr/lib', '/etc', '/dev', '/bin', sys.prefix, os.path.dirname(os.__file__)):
    try: open(place + '/planted', 'w'); print('wrote', place)
    except OSError: pass
"""
    ended = await attack(source)
    assert (ended.exit_code, ended.stdout) == (0, b"")


async def test_the_root_of_another_process_is_closed(attack: Attack) -> None:
    job = ExecJob(
        argv=("bash", "-c", "ls /proc/1/root/ /proc/1/cwd/ /proc/$PPID/root/ 2>/dev/null; cd ..; cd ..; ls root")
    )
    ended = await attack(job)
    assert b".ssh" not in ended.stdout
    assert b"bin" not in ended.stdout.split()


async def test_another_actions_directory_can_neither_be_seen_nor_written(sandbox: LocalSandbox) -> None:
    victim = """
import os, time
open('secret-of-the-victim', 'w').write('untouched')
print(os.getcwd(), flush=True)
time.sleep(1.5)
print(sorted(os.listdir('.')), open('secret-of-the-victim').read())
"""
    thief = """
import glob, os
here = os.path.dirname(os.path.abspath('.'))
places = glob.glob('/proc/[0-9]*/cwd') + glob.glob('/tmp/**', recursive=True) + [f'{here}/home-{n}' for n in range(400)]
for place in places:
    if os.path.realpath(place) == os.getcwd(): continue
    for path in (f'{place}/secret-of-the-victim', place):
        for mode in ('r', 'w'):
            try: print('opened', path, open(path, mode).read(9))
            except OSError: pass
    try: open(f'{place}/planted', 'w'); print('planted', place)
    except OSError: pass
"""
    watched = asyncio.create_task(sandbox.run(PythonJob(source=victim), CORE))
    await asyncio.sleep(0.4)
    robbed = await sandbox.run(PythonJob(source=thief), CORE)
    seen = await watched
    assert b"opened" not in robbed.stdout
    assert b"secret" not in robbed.stdout
    assert seen.stdout.splitlines()[1] == b"['main.py', 'secret-of-the-victim'] untouched"
    assert b"planted" not in seen.stdout


async def test_fetching_follows_no_link_out_of_the_private_directory(attack: Attack) -> None:
    source = """
import os
os.symlink('/etc/passwd', 'absolute'); os.symlink('../etc/passwd', 'upward'); os.symlink('/proc/self/environ', 'magic')
os.symlink('/usr', 'folder'); open('real', 'w').write('mine'); os.symlink('real', 'inner'); os.mkfifo('pipe')
try: os.link('/etc/passwd', 'hard')
except OSError: pass
"""
    fetch = ("absolute", "upward", "magic", "folder/bin/env", "hard", "pipe", "inner", "real")
    ended = await attack(PythonJob(source=source, fetch=fetch))
    assert ended.files == {"inner": b"mine", "real": b"mine"}


async def test_fetching_a_huge_sparse_file_is_bounded(attack: Attack) -> None:
    source = "f = open('sparse', 'wb'); f.truncate(60 << 20); g = open('ok', 'wb'); g.write(b'fine')"
    ended = await attack(PythonJob(source=source, fetch=("sparse", "ok"), limits=Limits(disk_bytes=1 << 20)))
    assert sum(map(len, ended.files.values())) <= 1 << 20
