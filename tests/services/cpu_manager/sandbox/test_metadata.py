"""Modes and times of a program's own files: what archives, linkers and version control need, on every rung.

On the Landlock rung init makes these calls for the program. That they reach no other file is in `attacks`.
"""

import shutil

import pytest

from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import ExecJob, PythonJob
from services.cpu_manager.sandbox.rungs import Rung
from tests.services.cpu_manager.sandbox.cells import CORE

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PYTHON = """
import os, shutil, stat, tarfile, threading
def seen(path): found = os.lstat(path); return oct(stat.S_IMODE(found.st_mode)), found.st_mtime
open('a', 'w').write('x'); os.chmod('a', 0o640); os.utime('a', (1000, 1000)); print(seen('a'))
shutil.copy2('a', 'b'); print(seen('b'))
os.mkdir('d'); os.chmod('d', 0o750); shutil.copytree('d', 'e'); print(seen('e')[0])
with tarfile.open('t.tar', 'w') as packed: packed.add('a'); packed.add('d')
os.mkdir('x'); tarfile.open('t.tar').extractall('x'); print(seen('x/a'), seen('x/d')[0])
fd = os.open('a', os.O_RDWR); os.fchmod(fd, 0o600); os.utime(fd, (5, 5)); print(seen('a'))
os.symlink('a', 'link'); os.utime('link', (7, 7), follow_symlinks=False); os.chmod('link', 0o644)
print(seen('link')[1], seen('a'))
folder = os.open('d', os.O_RDONLY); open('d/z', 'w'); os.chmod('z', 0o700, dir_fd=folder); print(seen('d/z')[0])
os.chdir('d'); os.chmod('../a', 0o711); os.chmod(os.path.abspath('../b'), 0o700); os.chdir('..')
print(seen('a')[0], seen('b')[0])
for wrong in ('missing', ''):
    try: os.chmod(wrong, 0o600)
    except FileNotFoundError: print('missing')
wrong = []
def work(number):
    for _ in range(50):
        try: os.chmod('d/z', 0o700 + number)
        except OSError as error: wrong.append(error)
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]; print(wrong)
"""
_SEEN = b"""('0o640', 1000.0)
('0o640', 1000.0)
0o750
('0o640', 1000.0) 0o750
('0o600', 5.0)
7.0 ('0o644', 5.0)
0o700
0o711 0o700
missing
missing
[]
"""

_SHELL = """
set -e
printf '#!/bin/sh\\necho runs\\n' > m; chmod +x m; ./m
touch -d @5 m; stat -c %Y m
cp -p m n; ./n; install -m 755 m q; ./q
tar cf z.tar m n; mkdir y; tar xf z.tar -C y; y/m; stat -c %Y y/n
"""
_GIT = """
set -e
export GIT_CONFIG_NOSYSTEM=1
git init -q g; cd g; git config user.email a@b; git config user.name x
printf '#!/bin/sh\\n' > m; chmod +x m; git add m; git commit -qm x; git ls-files -s m | cut -d' ' -f1
"""
_LINKER = "printf 'int main(void){return 7;}' > m.c && gcc m.c -o m && ./m; echo $?"


async def test_python_sets_modes_and_times_of_its_own_files(sandbox: LocalSandbox) -> None:
    for _ in range(2):  # the second in the same cell
        ended = await sandbox.run(PythonJob(source=_PYTHON), CORE)
        assert (ended.stdout, ended.stderr) == (_SEEN, b"")


@pytest.mark.parametrize(
    ("needs", "script", "stdout"),
    [
        ("tar", _SHELL, b"runs\n5\nruns\nruns\nruns\n5\n"),
        ("git", _GIT, b"100755\n"),
        ("gcc", _LINKER, b"7\n"),
    ],
)
async def test_tools_set_modes_and_times_of_their_files(
    sandbox: LocalSandbox, needs: str, script: str, stdout: bytes
) -> None:
    if shutil.which(needs) is None:
        pytest.skip(f"{needs} is not installed")
    ended = await sandbox.run(ExecJob(argv=("sh", "-c", script)), CORE)
    assert (ended.stdout, ended.exit_code) == (stdout, 0), ended


async def test_no_set_user_id_file_of_the_manager_can_be_made(sandbox: LocalSandbox) -> None:
    source = """
import os
open('s', 'w').close()
try: os.chmod('s', 0o4755); print('set')
except PermissionError: print('refused')
"""
    ended = await sandbox.run(PythonJob(source=source), CORE)
    # On the other rungs it is on a tmpfs that is mounted nosuid.
    assert ended.stdout == (b"refused\n" if sandbox.ladder.chosen is Rung.LANDLOCK else b"set\n")


async def test_the_time_that_init_spends_is_the_programs(sandbox: LocalSandbox) -> None:
    source = "import os, time\nopen('a', 'w')\nfor n in range(3000): os.chmod('a', 0o600)\nprint(time.process_time())"
    ended = await sandbox.run(PythonJob(source=source), CORE)
    others = ended.cpu_s - float(ended.stdout)
    assert others > (0.02 if sandbox.ladder.chosen is Rung.LANDLOCK else -0.1), ended
