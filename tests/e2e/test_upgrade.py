"""``treadle upgrade`` and the refusal of newer data, as a person types and reads them."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from shared.bus.schema import VERSION
from treadle.testing.servers import clean_environment, running_postgres, running_valkey, temporary_home

TREADLE = Path(sys.executable).with_name("treadle")
ECHO = "echo=treadle.testing.echo:create_app"


def treadle(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**clean_environment(), "TREADLE_HOME": str(root), "STACK_SERVICES": ECHO}
    return subprocess.run([TREADLE, *arguments], env=environ, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture
def root() -> Iterator[Path]:
    with temporary_home() as root:
        yield root


def test_an_older_store_is_upgraded_and_a_newer_one_refused(root: Path) -> None:
    with running_valkey(root) as url, redis.Redis.from_url(url) as client:
        client.incr("leader:epoch")  # as a release without versions leaves it
    checked = treadle(root, "upgrade", "--check")
    assert checked.returncode == 0, checked.stderr
    assert f"Valkey: schema 1 becomes {VERSION}" in checked.stdout
    assert "needs nothing" in checked.stdout
    assert "Postgres: empty, becomes revision 00" in checked.stdout
    with running_valkey(root) as url, redis.Redis.from_url(url) as client:
        assert client.get("schema") is None

    assert treadle(root, "upgrade").returncode == 0
    again = treadle(root, "upgrade")
    assert f"Valkey: schema {VERSION}, as this release has it" in again.stdout
    assert "as this release has it" in again.stdout.splitlines()[1]

    with running_valkey(root) as url, redis.Redis.from_url(url) as client:
        assert client.get("schema") == str(VERSION).encode()
        client.set("schema", VERSION + 97)
        refusal = (
            f"Valkey holds data of schema {VERSION + 97}, and this release of treadle reads schema {VERSION} at most"
        )
        service = [sys.executable, "-m", "treadle.stack.serve", "proxy", "services.proxy.app:create_app"]
        environ = {**clean_environment(), "TREADLE_REDIS_URL": url, "PROXY_PORT": "0"}
        alone = subprocess.run(service, env=environ, capture_output=True, text=True, timeout=120, check=False)
        assert alone.returncode == 1
        assert alone.stderr.splitlines()[-1].startswith(refusal)
    for command in (["up", "--detach"], ["upgrade"]):
        refused = treadle(root, *command)
        assert (refused.returncode, refusal in refused.stderr) == (1, True), refused.stderr


def test_newer_tables_are_refused(root: Path) -> None:
    with running_valkey(root):
        pass  # there is data
    assert treadle(root, "upgrade").returncode == 0
    with running_postgres(root) as server:
        asyncio.run(execute(server.url("treadle"), "UPDATE alembic_version SET version_num = '9999'"))
    refused = treadle(root, "up", "--detach")
    assert refused.returncode == 1
    assert "Postgres holds tables of revision 9999, and this release of treadle knows revisions up to" in refused.stderr


@pytest.mark.parametrize("command", [["upgrade", "--check"], ["upgrade"], ["repair"]])
def test_a_home_in_which_no_stack_has_run_is_refused_and_not_made(root: Path, command: list[str]) -> None:
    empty = root / "empty"
    empty.mkdir(parents=True)
    for home in (root / "misspelt", empty):
        refused = treadle(home, *command)
        assert refused.returncode == 1
        (line,) = refused.stderr.splitlines()
        assert f"no stack has run in TREADLE_HOME {home}" in line
    assert [path.name for path in root.rglob("*")] == ["empty"]


def test_a_running_stack_is_not_upgraded(root: Path) -> None:
    assert treadle(root, "up", "--detach").returncode == 0
    try:
        refused = treadle(root, "upgrade")
        assert (refused.returncode, "is up: stop it first" in refused.stderr) == (1, True)
    finally:
        treadle(root, "down")


async def execute(url: str, statement: str) -> None:
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text(statement))
    await engine.dispose()
