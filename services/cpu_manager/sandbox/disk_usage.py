"""Disk usage of a private directory that no file system limits, inodes included."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from shared.walls import syscalls

_ENTRY_BYTES: Final = 4096
"""Size of an empty file, a directory or a link: an inode and part of a block."""
_ROOT: Final = "."
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_HANDLE: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW


def disk_usage(home: str, enough: int) -> int:
    """Return the bytes on disk under a directory. The walk stops beyond `enough`. Costs about 2 us an entry.

    Links are not followed. A directory that a program of our own user has closed is opened, permanently. Two trees
    count as more than enough: one deeper than a path, and one closed again during the walk. Only abuse makes those.
    """
    total, places = 0, [_ROOT]
    root = os.open(home, _HANDLE | os.O_CLOEXEC)
    try:
        while places and total <= enough:  # not os.walk: before Python 3.12 it recurses as deep as the tree
            try:
                folder = _open(root, places[-1])
            except FileNotFoundError:
                places.pop()
                continue
            except OSError as error:
                if error.errno in {errno.ENOTDIR, errno.ELOOP}:  # replaced since it was listed
                    places.pop()
                    continue
                return enough + 1
            try:
                total += _entries_usage(folder, places.pop(), places, enough - total)
            finally:
                os.close(folder)
    finally:
        os.close(root)
    return total


def _entries_usage(folder: int, place: str, places: list[str], enough: int) -> int:
    """Return the size of one directory's entries. Adds the directories among them to `places`."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                found = _stat(folder, entry)
            except FileNotFoundError:
                continue
            except PermissionError:
                return enough + 1
            total += max(found.st_blocks * 512, _ENTRY_BYTES)
            if stat.S_ISDIR(found.st_mode):
                places.append(f"{place}/{entry.name}")
            if total > enough:
                break
    return total


def _stat(folder: int, entry: os.DirEntry[str]) -> os.stat_result:
    """Status of an entry. A directory that can be listed but not searched is opened."""
    try:
        return entry.stat(follow_symlinks=False)
    except PermissionError:
        os.chmod(folder, stat.S_IRWXU)
        return entry.stat(follow_symlinks=False)


def _open(root: int, place: str) -> int:
    try:
        return syscalls.open_beneath(root, place, _FOLDER)
    except PermissionError:
        _let_in(root, place)
        return syscalls.open_beneath(root, place, _FOLDER)


def _let_in(root: int, place: str) -> None:
    """Open a directory and its parents. The program may have closed any of them since they were listed."""
    syscalls.set_mode(root, stat.S_IRWXU)
    path = _ROOT
    for name in place.split("/")[1:]:
        path = f"{path}/{name}"
        handle = syscalls.open_beneath(root, path, _HANDLE)
        try:
            syscalls.set_mode(handle, stat.S_IRWXU)
        finally:
            os.close(handle)
