"""The embedded PostgreSQL: the history of batches. One cluster per home, on a unix socket, configured to be small.

The wheel's programs are run directly. Its own start-up helper opens every parent folder of the data to everyone.
"""

import os
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from shared.runtime.stack_state import StackError
from treadle.stack.account import Account, named_account
from treadle.stack.home import Home
from treadle.stack.process import Launch
from treadle.stack.programs import postgres_programs

SUPERUSER = "treadle"
DATABASE = "treadle"
_PARAMETERS = f"user\0{SUPERUSER}\0database\0{DATABASE}\0\0".encode()
_START = struct.pack("!II", 8 + len(_PARAMETERS), 3 << 16) + _PARAMETERS
"""StartupMessage of the frontend protocol, version 3.0."""
_TERMINATE = b"X" + struct.pack("!I", 4)
_ENVIRONMENT: Mapping[str, str] = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def postgres_url(home: Home, database: str = DATABASE) -> str:
    """Return the address for SQLAlchemy with asyncpg."""
    return f"postgresql+asyncpg://{SUPERUSER}@/{database}?host={quote(str(home.sockets), safe='')}"


def initialise_postgres(home: Home, *, durable: bool = True) -> None:
    """Create the cluster and its database if they are missing: about 0.6 s the first time, nothing later.

    An interrupted attempt leaves nothing that is used later. The cluster is created beside `postgres/`, which only its
    account can enter. It is moved there (a copy, if that folder is a disk of its own), and renamed when complete.

    Raises:
        StackError: ``initdb`` failed, or the existing cluster belongs to another major version.
    """
    programs, cluster = postgres_programs(home), _cluster(home)
    if cluster.exists():
        _check_version(programs, cluster)
        return
    maker = named_account(home.account)
    unfinished, moved = home.root / "postgres.unfinished", home.postgres / "unfinished"
    for leftover in (unfinished, moved):
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    maker.own(unfinished)
    _run(maker, unfinished, str(programs / "initdb"), *_initdb_options(durable), "-D", str(unfinished))
    # The single-user mode also looks its user up, so the change of owner comes last.
    single = (str(programs / "postgres"), "--single", "-D", str(unfinished), "-j", "postgres")
    _run(maker, unfinished, *single, typed=f"CREATE DATABASE {DATABASE};\n")
    shutil.move(unfinished, moved)
    home.account.own(moved)
    if durable:
        _run(home.account, moved, str(programs / "initdb"), "--sync-only", "-D", str(moved))
    moved.rename(cluster)


def postgres_launch(home: Home, *, durable: bool = True) -> Launch:
    """Return the launch of PostgreSQL: no TCP port, a socket for its own account and root, about 17 MB at rest (PSS).

    Args:
        durable: False trades durability for speed, for tests.
    """
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(home.sockets),
        "unix_socket_permissions": "0700",
        "max_connections": "100",
        "shared_buffers": "32MB",
        "wal_buffers": "4MB",
        "max_wal_size": "512MB",
        "io_method": "sync",  # three I/O workers are only useful on servers with many disks
        "max_parallel_workers": "0",
        "max_worker_processes": "2",
        "max_logical_replication_workers": "0",
        "max_wal_senders": "0",
        "wal_level": "minimal",  # nothing is replicated from here, and bulk loads write less
        "autovacuum_max_workers": "1",
        "autovacuum_worker_slots": "1",
        "jit": "off",
        "log_checkpoints": "off",
        "log_line_prefix": "",
        "log_timezone": "UTC",
        "timezone": "UTC",
        **({} if durable else {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}),
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return Launch(
        name="postgres",
        argv=(str(postgres_programs(home) / "postgres"), "-D", str(_cluster(home)), *options),
        env=_ENVIRONMENT,
        account=home.account,
        cwd=home.postgres,
        stop_signal=signal.SIGINT,  # "fast": SIGTERM would wait for clients to leave
        grace_s=20.0,
        death_signal=signal.SIGINT,
    )


def postgres_answers(home: Home, pid: int, *, timeout_s: float = 3.0) -> bool:
    """Return whether the server with this ``pid`` takes connections. Blocks; ``timeout_s`` for each step.

    The last line of ``postmaster.pid`` has the server's own state, so a starting server is not connected to. A hanging
    server leaves "ready" there, so it must also begin a session (a backend of a few milliseconds, ended at once).
    """
    try:
        lines = (_cluster(home) / "postmaster.pid").read_text().splitlines()
        if len(lines) < 8 or lines[0].strip() != str(pid) or lines[7].strip() != "ready":
            return False
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(home.sockets / ".s.PGSQL.5432"))
            connection.sendall(_START)
            begun = connection.recv(1) == b"R"  # an error begins with E
            connection.sendall(_TERMINATE)
    except OSError:
        return False
    return begun


def _cluster(home: Home) -> Path:
    return home.postgres / "cluster"


def _initdb_options(durable: bool) -> list[str]:
    # "trust" on a socket in a folder that only the servers' account can enter: the folder protects it.
    options = ["--username", SUPERUSER, "--auth", "trust", "--encoding", "UTF8", "--no-instructions"]
    options += ["--locale", "C", "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"]
    return options if durable else [*options, "--no-sync"]


def _check_version(programs: Path, cluster: Path) -> None:
    theirs = (cluster / "PG_VERSION").read_text().strip()
    ours = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, timeout=30, check=True)
    if ours.stdout.split()[-1].split(".")[0] != theirs:
        raise StackError(
            f"{cluster} was made by PostgreSQL {theirs}, this is {ours.stdout.strip()}. Move it away to start with an "
            "empty history, or bring it over with pg_upgrade."
        )


def _run(account: Account, cwd: Path, *argv: str, typed: str = "") -> None:
    done = subprocess.run(
        argv,
        input=typed,
        text=True,
        capture_output=True,
        env=dict(_ENVIRONMENT),
        cwd=cwd,
        timeout=120,
        check=False,
        **account.popen(),
    )
    if done.returncode != 0:
        raise StackError(f"{Path(argv[0]).name} failed in {cwd}:\n{done.stdout}{done.stderr}".rstrip())
