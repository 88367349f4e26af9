"""Parts of this host that programs may see: the interpreter, its packages, compilers and libraries; nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

_SYSTEM: Final = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")
_ETC: Final = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/ssl/openssl.cnf",
    "/etc/ssl/certs/java",
)
_TEXTS: Final = (
    ("/etc/passwd", "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n"),
    ("/etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    ("/etc/hosts", "127.0.0.1 localhost\n"),
    ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
)
SYSTEM_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_HOME: Final = "/tmp"  # inside: the private directory
_OWN: Final = ("/tmp", "/var/tmp", "/dev", "/proc", "/sys", "/etc")
"""Directories of the view that are not those of the host."""
_ENVIRONMENT: Final = (
    ("HOME", _HOME),
    ("TMPDIR", _HOME),
    ("PWD", _HOME),
    ("LANG", "C.UTF-8"),
    ("LC_ALL", "C.UTF-8"),
    ("PYTHONDONTWRITEBYTECODE", "1"),
    # Importing numpy must start no threads: a process with threads cannot enter a user namespace.
    ("OPENBLAS_NUM_THREADS", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
)
_COMMAND_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The read-only view: host paths bound at their own place, links, small generated files; and its interpreter."""

    binds: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    texts: tuple[tuple[str, str], ...]
    interpreter: str
    interpreter_path: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]


def closed_parent(path: str) -> str:
    """Return the first directory on the way to `path` that another user cannot pass; empty if there is none."""
    for parent in reversed(Path(path).parents):
        if not parent.stat().st_mode & 0o001:
            return str(parent)
    return ""


def open_to_others(tools: Toolchain) -> Toolchain:
    """Return the toolchain without paths that another user cannot reach (compilers under /root), also in PATH."""
    closed = [path for path in tools.binds if closed_parent(path)]
    environment = dict(tools.environment)
    search = [place for place in environment["PATH"].split(":") if not _covered(place, closed)]
    environment["PATH"] = ":".join(search)
    binds = tuple(path for path in tools.binds if path not in closed)
    return replace(tools, binds=binds, environment=tuple(environment.items()))


def visible(paths: str) -> tuple[str, ...]:
    """Return the paths of a list that is separated by `:`, without those that every view has.

    Raises:
        ValueError: one of them cannot be shown to programs; contains the reason.
    """
    found = [Path(path) for path in paths.split(":") if path]
    for path in found:
        if not path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{path} is not an absolute path")
        if any(path.is_relative_to(own) or Path(own).is_relative_to(path) for own in _OWN):
            raise ValueError(f"{path} cannot be shown: programs have a directory of their own there")
        if not path.exists():
            raise ValueError(f"{path} does not exist")
    return tuple(str(path) for path in found if not any(path.is_relative_to(shown) for shown in _SYSTEM))


def detect(shown: tuple[str, ...] = ()) -> Toolchain:
    """Find the toolchain of this node, and add the paths `shown` to it.

    Runs `rustc` and `go` to find their homes: up to a second, once a manager.
    """
    binds: list[str] = []
    links: list[tuple[str, str]] = []
    for path in _SYSTEM:
        if Path(path).is_symlink():
            links.append((path, str(Path(path).readlink())))
        elif Path(path).is_dir():
            binds.append(path)
    binds += [path for path in (*_ETC, *map(str, Path("/etc").glob("java-*"))) if Path(path).exists()]
    links.append(("/var/tmp", "/tmp"))
    interpreter = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    packages = sysconfig.get_paths()["purelib"]
    extra = [str(Path(sys.base_prefix).resolve()), packages]
    homes = [home for home in (rust_home(), go_home()) if home]
    extra += [*homes, *shown]
    binds += [path for path in extra if not _covered(path, binds)]
    search = ":".join([f"{home}/bin" for home in homes] + [f"{sys.base_prefix}/bin", SYSTEM_PATH])
    environment = (*_ENVIRONMENT, ("PATH", search))
    return Toolchain(tuple(binds), tuple(links), _TEXTS, interpreter, (packages,), environment)


def _covered(path: str, binds: list[str]) -> bool:
    return any(Path(path).is_relative_to(bind) for bind in binds)


def _first_line(*argv: str) -> str:
    """Return the first line that a program prints; empty if it is missing or fails."""
    if shutil.which(argv[0]) is None:
        return ""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_COMMAND_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout or done.stderr).strip().splitlines()[0] if (done.stdout or done.stderr).strip() else ""


def rust_home() -> str:
    """Return the directory of the Rust compiler (rustup's `rustc` is a proxy that needs a home directory)."""
    return _first_line("rustc", "--print", "sysroot")


def go_home() -> str:
    return _first_line("go", "env", "GOROOT")
