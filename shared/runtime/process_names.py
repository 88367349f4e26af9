"""Names of processes, with which a process checks whether another one of its machine has ended.

A killed service cannot release its lease. With its name, other processes of its machine find out that it has ended, and
do not wait until the lease expires.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from shared.runtime.identity import Identity, identify, look_at
from shared.runtime.kept_processes import boot_id

_PIDS: Final = Path("/proc/self/ns/pid")
_TIMES: Final = Path("/proc/self/ns/time")


class _Named(NamedTuple):
    """The parts of a name."""

    space: str
    process: Identity


def process_name() -> str:
    """Return a new name of this process, unique in the world: 16 hexadecimal digits, and where `/proc` is readable also
    `.<space>.<pid>.<start>`; at most 60 characters.
    """
    serial, space, own = secrets.token_hex(8), _space(), identify(os.getpid())
    return serial if own is None or not space else f"{serial}.{space}.{own.pid}.{own.started}"


def has_ended(name: str) -> bool:
    """Return whether the named process has certainly ended. False also for one of another machine or container, and for
    one that exists and cannot be seen: a mount of `/proc` hides it, or this process has no file descriptor left.

    Machines that were cloned while running have one boot id. A process of a clone seems to have ended here: give those
    that live time to show it.
    """
    found = _parse(name)
    if found is None or found.space != _space():
        return False
    try:
        os.kill(found.process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # of another user
    seen = look_at(found.process.pid)
    return seen is not None and (seen.ended or seen.started != found.process.started)


@cache
def _space() -> str:
    """Return the id of this boot, this pid namespace, and this time namespace, by which start times are shown. Linux
    reuses the number of a namespace whose processes have all ended: those of the former one are rightly not found.
    "": not known.
    """
    with suppress(OSError):
        times = _TIMES.stat().st_ino if _TIMES.exists() else 0
        return blake2b(f"{boot_id()} {_PIDS.stat().st_ino} {times}".encode(), digest_size=6).hexdigest()
    return ""


def _parse(name: str) -> _Named | None:
    parts = name.split(".")
    if len(parts) != 4 or not (parts[2].isdecimal() and parts[3].isdecimal()):
        return None
    return _Named(parts[1], Identity(int(parts[2]), int(parts[3])))
