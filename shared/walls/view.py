"""The read-only view of the toolchain that replaces the host's root directory in a zygote's mount namespace."""

# Plain calls and no path objects: each page written after a fork is copied.
# ruff: noqa: PTH102, PTH103, PTH112, PTH120, PTH123, PTH211

from __future__ import annotations

import os
from typing import Final

from shared.walls import syscalls
from shared.walls.syscalls import MS_BIND, MS_NOSUID, MS_PRIVATE, MS_REC

DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_DEVICE_LINKS: Final = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    # Named shared memory is in the private directory: it has the same size limit and ends with the cell.
    ("shm", "/tmp"),
)


def build(
    root: str,
    binds: tuple[tuple[str, str], ...],
    links: tuple[tuple[str, str], ...],
    texts: tuple[tuple[str, str], ...],
    devices: tuple[str, ...] = (),
) -> None:
    """Build the view on `root` and enter it. Needs CAP_SYS_ADMIN and its own mount namespace.

    `binds` are host paths and their paths in the view; `links` are symbolic links, `texts` small files, `devices`
    paths of further devices. Afterwards no other file of the host can be named. The old
    /proc stays until a new one covers it: the kernel lets an unprivileged process mount a new /proc only if it can
    already see one.
    """
    syscalls.mount("none", "/", "", MS_REC | MS_PRIVATE)
    syscalls.mount("view", root, "tmpfs", MS_NOSUID, "mode=0755,size=4m")
    for name in ("proc", "tmp", "dev", "etc"):
        os.mkdir(f"{root}/{name}", 0o755)
    for source, target in sorted(binds, key=lambda bind: bind[1]):
        _bind(source, root + target)
    for path, target in links:
        os.makedirs(os.path.dirname(root + path), 0o755, exist_ok=True)
        os.symlink(target, root + path)
    for path, text in texts:
        _write(root + path, text)
    paths = (*(f"/dev/{device}" for device in DEVICES), *devices)
    for path in paths:
        _write(root + path, "")
    for name, target in _DEVICE_LINKS:
        os.symlink(target, f"{root}/dev/{name}")
    syscalls.seal_tree(root)
    for path in paths:
        syscalls.mount(path, root + path, "", MS_BIND)
        syscalls.seal_tree(root + path, devices=True)
    syscalls.mount("/proc", f"{root}/proc", "", MS_BIND | MS_REC)
    syscalls.pivot_to(root)


def _bind(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, 0o755, exist_ok=True)
    else:
        _write(target, "")
    syscalls.mount(source, target, "", MS_BIND | MS_REC)


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
