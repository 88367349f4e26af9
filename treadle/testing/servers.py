"""Real servers for tests: Valkey and PostgreSQL as the stack runs them, in a folder that goes away."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.runtime.stack_state import StackError
from treadle.stack.home import Home, open_home
from treadle.stack.postgres import (
    SUPERUSER,
    initialise_postgres,
    postgres_answers,
    postgres_launch,
    postgres_url,
)
from treadle.stack.process import Launch, start, stop
from treadle.stack.programs import postgres_programs
from treadle.stack.valkey import valkey_answers, valkey_launch, valkey_socket, valkey_url

START_TIMEOUT_S = 30.0


@contextmanager
def temporary_home() -> Iterator[Path]:
    """A folder for ``TREADLE_HOME`` under ``/tmp``, deleted afterwards.

    Not pytest's ``tmp_path``: root's servers run under another account, which may not enter that.
    """
    folder = Path(tempfile.mkdtemp(prefix="treadle-", dir="/tmp"))
    folder.chmod(0o711)
    try:
        yield folder / "home"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_valkey(root: Path, *, durable: bool = True) -> Iterator[str]:
    """A Valkey of its own on the home ``root``, as a URL; data found there is loaded. About 50 ms."""
    home = open_home(root)
    with running(valkey_launch(home, durable=durable), lambda _: valkey_answers(valkey_socket(home))):
        yield valkey_url(home)


@contextmanager
def running_postgres(root: Path, *, durable: bool = False) -> Iterator["PostgresServer"]:
    """A PostgreSQL of its own on the home ``root``. About 0.7 s when its cluster must be made, else 50 ms."""
    home = open_home(root)
    initialise_postgres(home, durable=durable)
    with running(postgres_launch(home, durable=durable), lambda pid: postgres_answers(home, pid)):
        yield PostgresServer(home)


class PostgresServer:
    """The databases of a running cluster."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def url(self, database: str) -> str:
        return postgres_url(self._home, database)

    def create(self, database: str, template: str = "template1") -> str:
        """Make ``database`` as a copy of ``template``, which must have no connections. Return its URL. About 40 ms."""
        self.execute(f"CREATE DATABASE {database} TEMPLATE {template} STRATEGY file_copy")
        return self.url(database)

    def drop(self, database: str) -> None:
        """Drop ``database``, ending the connections that a failed test left open."""
        self.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")

    def execute(self, sql: str) -> str:
        """Run one statement in the database ``postgres``; what it printed."""
        psql = (postgres_programs(self._home) / "psql", "-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1")
        connection = ("-h", str(self._home.sockets), "-U", SUPERUSER, "-d", "postgres", "-c", sql)
        return subprocess.run([*psql, *connection], stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout


@contextmanager
def running(launch: Launch, ready: Callable[[int], bool]) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``launch`` until the block ends, entered when ``ready(pid)`` is true.

    Raises:
        StackError: it ended or was not ready in 30 s; the message holds what it printed.
    """
    with tempfile.TemporaryFile() as output:
        process = start(launch, output=output)
        try:
            _await_ready(process, launch.name, ready)
            yield process
        except StackError as error:
            output.seek(0)
            raise StackError(f"{error}\n{output.read().decode(errors='replace')}") from error
        finally:
            if process.poll() is None:
                stop(process, launch)


def _await_ready(process: subprocess.Popen[bytes], name: str, ready: Callable[[int], bool]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not ready(process.pid):
        if process.poll() is not None:
            raise StackError(f"{name} ended with status {process.returncode} instead of starting:")
        if time.monotonic() > deadline:
            raise StackError(f"{name} was not ready after {START_TIMEOUT_S:.0f} s:")
        time.sleep(0.01)


def clean_environment() -> dict[str, str]:
    """An environment in which this interpreter finds this checkout, without any setting of the person's own stack."""
    return {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
