"""Landlock (landlock(7)): file access by allow-list, and scopes that confine signals and abstract sockets.

Raw calls, because glibc has no wrappers. ABI 6 (Linux 6.12) introduced the scopes, which the Landlock rung needs:
without them a program could kill every process of its own user.
"""

# Plain calls and no path objects: each page written after a fork is copied.
# ruff: noqa: PTH112

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterable
from typing import Final

from shared.walls import syscalls

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_QUERY_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
_IOCTL_DEV: Final = 1 << 15
#: All file rights up to ABI 5 (the last one is ioctl on devices).
ALL_FILES: Final = (1 << 16) - 1
#: The rights that apply to something other than a directory.
_FILE_RIGHTS: Final = EXECUTE | WRITE_FILE | READ_FILE | (1 << 14) | _IOCTL_DEV
READ_TREE: Final = EXECUTE | READ_FILE | READ_DIR
_NET_TCP: Final = 0b11
_SCOPE_ABSTRACT_UNIX: Final = 1
_SCOPE_SIGNAL: Final = 2

SCOPED_ABI: Final = 6


def abi() -> int:
    """Return the kernel's Landlock version; 0 if it is absent or disabled."""
    try:
        return syscalls.syscall("landlock_create_ruleset", _CREATE_RULESET, None, ctypes.c_size_t(0), _QUERY_VERSION)
    except OSError:
        return 0


def _create_ruleset(files: int, net: int, scoped: int) -> int:
    attr = struct.pack("=QQQ", files, net, scoped)
    return syscalls.syscall("landlock_create_ruleset", _CREATE_RULESET, attr, ctypes.c_size_t(len(attr)), 0)


def create_ruleset(readable: Iterable[str], devices: Iterable[str], private: str) -> int:
    """Return a rule set (descriptor): read and execute the toolchain, use devices, own `private`; no TCP, scoped."""
    ruleset = _create_ruleset(ALL_FILES, _NET_TCP, _SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL)
    for path in readable:
        _allow(ruleset, path, READ_TREE)
    for path in devices:
        _allow(ruleset, path, READ_FILE | WRITE_FILE)
    _allow(ruleset, private, ALL_FILES & ~_IOCTL_DEV)
    return ruleset


def _allow(ruleset: int, path: str, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not os.path.isdir(path):
                rights &= _FILE_RIGHTS
            rule = struct.pack("=Qi", rights, descriptor)
            syscalls.syscall("landlock_add_rule", _ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
        finally:
            os.close(descriptor)


def restrict(ruleset: int) -> None:
    """Apply the rule set to this process and its descendants, permanently. Needs no_new_privs."""
    syscalls.syscall("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)
