"""Under whose name the embedded servers run.

PostgreSQL refuses to run as root, and neither server needs to be. An ordinary user runs them as himself. Root gives
them a numeric identity of their own that no account uses: no entry in ``/etc/passwd`` is made, so nothing is left
behind, and the sandboxes' ``nobody`` owns none of the servers' files.
"""

import os
import pwd
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from shared.runtime.stack_errors import StackError

# systemd's table of uids leaves 60578-61183 unassigned on every distribution (https://systemd.io/UIDS-GIDS).
UNASSIGNED_UIDS = range(60578, 61184)
ACCOUNT_NAME = "treadle"


class ProcessIdentity(TypedDict, total=False):
    """The keyword arguments of ``subprocess.Popen`` that change who a child is."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class Account:
    """A numeric user and group; not necessarily one that has a name."""

    uid: int
    gid: int

    def popen(self) -> ProcessIdentity:
        """How a child becomes this account: empty when it is ours already, so that no privilege is needed."""
        if self.uid == os.geteuid():
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Give ``path`` and all below it to this account, unless we are it; links are not followed."""
        if self.uid == os.geteuid():
            return
        for folder, names, files in os.walk(path):
            for name in [*names, *files]:
                os.chown(Path(folder, name), self.uid, self.gid, follow_symlinks=False)
        os.chown(path, self.uid, self.gid)

    def can_run(self, argv: list[str]) -> bool:
        """Whether this account may execute ``argv``, found out by doing it (about 10 ms)."""
        try:
            done = subprocess.run(argv, capture_output=True, timeout=30, check=False, cwd="/", **self.popen())
        except (OSError, subprocess.SubprocessError):
            return False
        return done.returncode == 0

    def can_enter(self, folder: Path) -> bool:
        """Whether this account may reach ``folder`` through all its parents, found out by doing it."""
        return self.can_run(["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)])

    def first_closed(self, folder: Path) -> Path:
        """The outermost of ``folder`` and its parents that this account may not enter; about 5 ms for each."""
        path = [*reversed(folder.parents), folder]
        return next((each for each in path if not self.can_enter(each)), folder)


def server_account(data: Path) -> Account:
    """The account for the servers whose data lies in ``data``.

    Ourselves when we are not root; else the owner of existing data, an account named ``treadle``, or the first
    unassigned uid, in this order. A uid that the kernel does not map here (a container with few ids) is passed over
    for ``nobody``.

    Raises:
        StackError: we are root without the right to become anyone else.
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
    """``account`` if it has a name, else ``nobody``: ``initdb`` insists on a name, the server itself does not.

    Raises:
        StackError: we have no name and are not root either, or there is no ``nobody``.
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
