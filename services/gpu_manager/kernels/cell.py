"""Walls around a process: namespaces, a view of the toolchain and of given devices, no rights, a system-call filter."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from shared.walls import syscalls, view
from shared.walls.seccomp import Filter, Rules

_SYSTEM: Final = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/ld.so.conf.d")
_PACKAGES: Final = ("site-packages", "dist-packages")
_NOBODY: Final = 65_534


def enter(work: Callable[[], None], root: str, devices: tuple[str, ...], shown: tuple[str, ...]) -> NoReturn:
    """Run `work` behind walls in a child of this process, and end with its status.

    Args:
        work: everything that it imports has been imported.
        root: an empty directory, on which the view is mounted.
        devices: device files that it may use.
        shown: files and directories beside the toolchain that it may read.

    Raises:
        OSError: this host cannot build the walls.
    """
    filter_ = Filter(Rules(namespaces=True))
    privileged = os.geteuid() == 0
    flags = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
    if not privileged:
        uid, gid = os.getuid(), os.getgid()
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text, encoding="ascii")
    syscalls.unshare(flags | syscalls.CLONE_NEWNS)
    view.build(root, *_visible(shown), (), devices)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
        syscalls.drop_bounding_set()
        if privileged:
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        syscalls.drop_capabilities()
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user has cleared it
        for kind, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_NPROC, 256), (resource.RLIMIT_NOFILE, 1024)):
            with contextlib.suppress(ValueError):
                resource.setrlimit(kind, (value, value))
        filter_.install()
        work()
    except BaseException as error:  # noqa: BLE001  # the last words of the process
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)


def _visible(shown: tuple[str, ...]) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Return binds and links of the view."""
    links = tuple((path, str(Path(path).readlink())) for path in _SYSTEM if Path(path).is_symlink())
    wanted = [path for path in _SYSTEM if Path(path).exists() and not Path(path).is_symlink()]
    wanted += [str(Path(sys.base_prefix).resolve()), *_packages(), *shown]
    binds: list[str] = []
    for path in wanted:
        if Path(path).exists() and not any(Path(path).is_relative_to(bind) for bind in binds):
            binds.append(path)
    return tuple((path, path) for path in binds), links


def _packages() -> list[str]:
    """Return the directories of installed packages. NumPy, parts of which are imported late, may be in any of them:
    a virtual environment can use those of the system or of the user.
    """
    return [sysconfig.get_paths()["purelib"], *(path for path in sys.path if Path(path).name in _PACKAGES)]
