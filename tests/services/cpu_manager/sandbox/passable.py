"""Run a command with a toolchain that every user can reach, as root or as `nobody`: `passable.py USER COMMAND...`

If the interpreter is in a closed folder (/root), an ordinary user has no Python to test with. In a mount namespace
of its own this script lays an open folder over the closed one, with only the toolchain in it. Root only.
"""

import os
import sys
import tempfile
from pathlib import Path

from services.cpu_manager.sandbox.toolchain import closed_parent
from shared.walls import syscalls
from shared.walls.syscalls import MS_BIND, MS_PRIVATE, MS_REC

_NOBODY = 65534


def uncover(paths: list[Path]) -> None:
    """Make each path reachable for every user, in this mount namespace alone."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", "", MS_REC | MS_PRIVATE)
    for closed in sorted({Path(parent) for path in paths if (parent := closed_parent(str(path)))}):
        inside = [path.relative_to(closed) for path in paths if path.is_relative_to(closed)]
        kept = Path(tempfile.mkdtemp())
        syscalls.mount(str(closed), str(kept), "", MS_BIND | MS_REC)
        syscalls.mount("open", str(closed), "tmpfs", 0, "mode=0755")
        for path in inside:
            (closed / path).mkdir(parents=True, exist_ok=True)
            syscalls.mount(str(kept / path), str(closed / path), "", MS_BIND | MS_REC)
        syscalls.umount(str(kept))
        kept.rmdir()


def main(user: str, command: list[str]) -> None:
    repository = Path(__file__).resolve().parents[4]
    uncover([Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), repository])
    os.chdir(repository)
    os.environ.update(HOME=tempfile.gettempdir())
    if user == "nobody":
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
