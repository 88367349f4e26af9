"""The folder of a stack. Two stacks with two folders share nothing.

``run/`` state of the supervisor, ``log/`` one file per service, ``valkey/`` and ``postgres/`` the servers' data,
``sockets/`` their sockets, ``bin/`` copies of their programs if their account cannot execute the originals, ``cache/``
compiled code of the services if it cannot be stored beside their source.
"""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.runtime.stack_state import StackError
from treadle.stack.account import Account, server_account

_PRIVATE = 0o700
# sockaddr_un has 108 bytes with the closing zero; our longest name in it is ".s.PGSQL.65535.lock".
LONGEST_SOCKET_FOLDER = 107 - len("/.s.PGSQL.65535.lock")


def home_path(environ: Mapping[str, str]) -> Path:
    """Return ``TREADLE_HOME``, else ``/var/lib/treadle`` for root and ``~/.treadle`` for other users."""
    if chosen := environ.get("TREADLE_HOME"):
        return Path(chosen).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/treadle")
    return Path("~/.treadle").expanduser()


@dataclass(frozen=True, slots=True)
class Home:
    """The paths of one stack, and the account of its servers."""

    root: Path
    account: Account

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def valkey(self) -> Path:
        return self.root / "valkey"

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def programs(self) -> Path:
        return self.root / "bin"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def sockets(self) -> Path:
        """``sockets/`` here, or a folder in ``/tmp`` named after this home if the path is too long for a socket."""
        near = self.root / "sockets"
        if len(os.fsencode(near)) <= LONGEST_SOCKET_FOLDER:
            return near
        return Path("/tmp") / f"treadle-{self.account.uid}-{hashlib.sha256(os.fsencode(near)).hexdigest()[:16]}"


def open_home(root: Path) -> Home:
    """Create what is missing under ``root``, and find the servers' account. Safe to repeat.

    Only folders created here get a mode or an owner. Parents are not changed, whatever their mode.

    Raises:
        StackError: ``root`` cannot be written, or the servers' account cannot reach it.
    """
    try:
        home = Home(root, server_account(root / "postgres"))
        root.parent.mkdir(parents=True, exist_ok=True)
        # Other users may pass through (sandboxes have their folders here), but not list it.
        _folder(root, 0o711)
        _folder(home.run, 0o700)
        _folder(home.log, 0o700)
        _folder(home.cache, 0o700)
        _folder(home.programs, 0o711)
    except OSError as error:
        raise StackError(_not_created(root, error)) from error
    if not home.account.can_enter(root):
        raise StackError(_not_entered(root, home.account))
    for folder in (home.valkey, home.postgres, home.sockets):
        _folder(folder, 0o700, home.account)
    return home


def _not_created(root: Path, error: OSError) -> str:
    where = Path(os.fsdecode(error.filename)) if error.filename else root
    if isinstance(error, PermissionError):
        ours = Account(os.geteuid(), os.getegid())
        closed = ours.first_closed(where.parent)
        why = f"{closed} is closed to you" if not ours.can_enter(closed) else f"you may not write in {closed}"
    else:
        why = f"{where}: {error.strerror}"
    return f"cannot use TREADLE_HOME {root}: {why}. Set TREADLE_HOME to a folder you own."


def _not_entered(root: Path, account: Account) -> str:
    closed = account.first_closed(root)
    mode = stat.S_IMODE(closed.stat().st_mode)
    return (
        f"uid {account.uid}, which runs PostgreSQL and Valkey, cannot enter TREADLE_HOME {root}: {closed} is closed to "
        f"it (mode {mode:04o}). Open that folder (chmod o+x {closed}), or set TREADLE_HOME to a folder outside of "
        "closed ones, such as /var/lib/treadle."
    )


def _folder(path: Path, mode: int, owner: Account | None = None) -> None:
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        _check_folder(path, mode, owner.uid if owner else os.geteuid())
        return
    path.chmod(mode)  # mkdir's mode is subject to the umask
    if owner and owner.uid != os.geteuid():
        os.chown(path, owner.uid, owner.gid)


def _check_folder(path: Path, mode: int, wanted: int) -> None:
    """Reject a link and a folder of another user. Close a private folder whose mode was opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        found = path.lstat()
    else:
        try:
            found = os.fstat(descriptor)
            if found.st_uid == wanted and mode == _PRIVATE and found.st_mode & 0o077:
                os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
    if not stat.S_ISDIR(found.st_mode):
        raise StackError(
            f"{path} is a link or a file, and should be a folder of uid {wanted}. Set TREADLE_HOME to a folder of your "
            "own, or remove it."
        )
    if found.st_uid != wanted:
        raise StackError(
            f"{path} belongs to uid {found.st_uid}, and should be a folder of {wanted}: it was made by another user. "
            "Set TREADLE_HOME to a folder of your own, or remove it."
        )
