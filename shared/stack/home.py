"""Where a stack keeps its things: one folder, so that two stacks with two folders never meet.

``run/`` state of the supervisor, ``log/`` one file a service, ``valkey/`` and ``postgres/`` the servers' data,
``sockets/`` their doors, ``bin/`` copies of their programs where their account could not execute the originals.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.stack.account import Account, server_account
from shared.stack.errors import StackError

# sockaddr_un holds 108 bytes with the closing zero; the longest name we put there is ".s.PGSQL.5432.lock".
LONGEST_SOCKET_FOLDER = 107 - len("/.s.PGSQL.65535.lock")


def home_path(environ: Mapping[str, str]) -> Path:
    """``TREADLE_HOME``, else ``/var/lib/treadle`` for root and ``~/.treadle`` for everyone else."""
    if chosen := environ.get("TREADLE_HOME"):
        return Path(chosen).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/treadle")
    return Path("~/.treadle").expanduser()


@dataclass(frozen=True, slots=True)
class Home:
    """The paths of one stack and the account that its servers run as."""

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
    def sockets(self) -> Path:
        """``sockets/`` here, or a folder in ``/tmp`` named after this home where the path would not fit a socket."""
        near = self.root / "sockets"
        if len(os.fsencode(near)) <= LONGEST_SOCKET_FOLDER:
            return near
        return Path("/tmp") / f"treadle-{self.account.uid}-{hashlib.sha256(os.fsencode(near)).hexdigest()[:16]}"


def open_home(root: Path) -> Home:
    """Create what is missing under ``root`` and say who the servers are; safe to repeat.

    Only folders made here get a mode or an owner: parents are left as they are, whatever their mode.

    Raises:
        StackError: ``root`` cannot be written, or the servers' account cannot reach it.
    """
    home = Home(root, server_account(root / "postgres"))
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        # Others may pass through (sandboxes keep their folders here), they may not look around.
        _folder(root, 0o711)
        _folder(home.run, 0o700)
        _folder(home.log, 0o700)
        _folder(home.programs, 0o711)
    except OSError as error:
        raise StackError(f"cannot create {root}: {error.strerror}. Set TREADLE_HOME to a folder you own.") from error
    if not home.account.can_enter(root):
        raise StackError(
            f"uid {home.account.uid}, which runs PostgreSQL and Valkey, cannot enter {root}: a parent folder is closed "
            "to it. Set TREADLE_HOME to a folder outside of home directories, such as /var/lib/treadle."
        )
    for folder in (home.valkey, home.postgres, home.sockets):
        _folder(folder, 0o700, home.account)
    return home


def _folder(path: Path, mode: int, owner: Account | None = None) -> None:
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        wanted = owner.uid if owner else os.geteuid()
        if path.is_symlink() or path.stat().st_uid != wanted:
            raise StackError(
                f"{path} belongs to uid {path.lstat().st_uid}, not to {wanted}: it was made by another user. "
                "Set TREADLE_HOME to a folder of your own, or remove it."
            ) from None
        return
    path.chmod(mode)  # mkdir's mode is subject to the umask
    if owner and owner.uid != os.geteuid():
        os.chown(path, owner.uid, owner.gid)
