"""The account of the embedded servers.

PostgreSQL refuses to run as root, and neither server needs root. An ordinary user runs them as himself. Root gives them
a numeric identity of their own that no account uses. It makes no entry in ``/etc/passwd``, so nothing is left behind,
and the sandboxes' ``nobody`` owns none of the servers' files.
"""

import os
import pwd
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from shared.runtime.stack_state import StackError

# systemd's table of uids leaves 60578-61183 unassigned on every distribution (https://systemd.io/UIDS-GIDS).
UNASSIGNED_UIDS = range(60578, 61184)
ACCOUNT_NAME = "treadle"


class ProcessIdentity(TypedDict, total=False):
    """Arguments of ``subprocess.Popen`` that set a child's user and groups."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class Account:
    """A numeric user and group. They need not have names."""

    uid: int
    gid: int

    def popen(self) -> ProcessIdentity:
        """Return the arguments that start a child as this account; empty if it is ours, which needs no privilege."""
        if self.uid == os.geteuid():
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Give ``path`` and all below it to this account, unless it is ours. Links are not followed."""
        if self.uid == os.geteuid():
            return
        for folder, names, files in os.walk(path):
            for name in [*names, *files]:
                os.chown(Path(folder, name), self.uid, self.gid, follow_symlinks=False)
        os.chown(path, self.uid, self.gid)

    def can_run(self, argv: list[str]) -> bool:
        """Return whether this account can execute ``argv``. Executes it (about 10 ms)."""
        try:
            done = subprocess.run(argv, capture_output=True, timeout=30, check=False, cwd="/", **self.popen())
        except (OSError, subprocess.SubprocessError):
            return False
        return done.returncode == 0

    def can_enter(self, folder: Path) -> bool:
        """Return whether this account can reach ``folder`` through all its parents. Tries it."""
        return self.can_run(["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)])

    def first_closed(self, folder: Path) -> Path:
        """Return the outermost of ``folder`` and its parents that this account cannot enter. About 5 ms for each."""
        path = [*reversed(folder.parents), folder]
        return next((each for each in path if not self.can_enter(each)), folder)


def server_account(data: Path) -> Account:
    """Return the account for the servers whose data is in ``data``.

    For an ordinary user, it is the user. For root it is the owner of existing data, an account named ``treadle``, or
    the first unassigned uid, in this order. If the kernel does not map that uid here (a container with few ids), it is
    ``nobody``.

    Raises:
        StackError: root has no right to become another user.
    """
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    for account in _candidates():
        if account.can_run(["/bin/sh", "-c", ":"]):
            return account
    raise StackError(
        "PostgreSQL does not run as root, and this root may not become another user (no CAP_SETUID). "
        "Run treadle as an ordinary user, or set TREADLE_REDIS_URL and TREADLE_DATABASE_URL to servers of your own."
    )


def named_account(account: Account) -> Account:
    """Return ``account`` if it has a name, else ``nobody``. ``initdb`` needs a name; the server does not.

    Raises:
        StackError: we have no name and are not root, or there is no ``nobody``.
    """
    with suppress(KeyError):
        pwd.getpwuid(account.uid)
        return account
    if account.uid == os.geteuid():
        raise StackError(
            f"initdb needs a user with a name and uid {account.uid} has none (an arbitrary uid in a container?). "
            "Give it a line in /etc/passwd, or set TREADLE_DATABASE_URL to a server of your own."
        )
    return _nobody()


def _nobody() -> Account:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError as error:
        raise StackError("initdb needs a named account to run as and there is no 'nobody': useradd nobody") from error
    return Account(entry.pw_uid, entry.pw_gid)


def _candidates() -> list[Account]:
    taken = {entry.pw_uid: entry for entry in pwd.getpwall()}
    named = [Account(entry.pw_uid, entry.pw_gid) for entry in taken.values() if entry.pw_name == ACCOUNT_NAME]
    free = next(uid for uid in UNASSIGNED_UIDS if uid not in taken)
    return [*named, Account(free, free), _nobody()]
