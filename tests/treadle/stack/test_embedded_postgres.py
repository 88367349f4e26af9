"""The embedded PostgreSQL creates its cluster, keeps its folders private and does not open others."""

import os
import pwd
import stat
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from shared.runtime.stack_state import StackError
from treadle.stack.account import Account, named_account
from treadle.stack.home import open_home
from treadle.stack.postgres import initialise_postgres, postgres_launch
from treadle.testing.servers import running_postgres


async def fetch(url: str, sql: str) -> object:
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            return (await connection.execute(sqlalchemy.text(sql))).scalar_one()
    finally:
        await engine.dispose()


async def test_a_new_home_has_the_database_treadle(stack_home: Path) -> None:
    with running_postgres(stack_home, durable=True) as server:
        assert await fetch(server.url("treadle"), "SELECT current_database()") == "treadle"
        assert await fetch(server.url("treadle"), "SHOW fsync") == "on"
        assert await fetch(server.url("treadle"), "SHOW listen_addresses") == ""


async def test_data_outlives_a_restart(stack_home: Path) -> None:
    with running_postgres(stack_home) as server:
        server.create("kept")
    with running_postgres(stack_home) as server:
        assert await fetch(server.url("kept"), "SELECT current_database()") == "kept"


def test_no_parent_folder_changes_its_mode(stack_home: Path) -> None:
    parents = list(stack_home.parents)
    before = [(parent.stat().st_mode, parent.stat().st_uid) for parent in parents]
    with running_postgres(stack_home):
        during = [(parent.stat().st_mode, parent.stat().st_uid) for parent in parents]
    assert during == before


def test_the_data_is_readable_by_its_owner_only(stack_home: Path) -> None:
    home = open_home(stack_home)
    initialise_postgres(home, durable=False)
    for folder in (home.postgres, home.valkey, home.sockets, home.postgres / "cluster"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.stat().st_uid == home.account.uid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives its servers an account of their own")
def test_root_runs_the_servers_as_somebody_without_rights(stack_home: Path) -> None:
    with running_postgres(stack_home):
        home = open_home(stack_home)
        pid = int((home.postgres / "cluster" / "postmaster.pid").read_text().split()[0])
        assert Path(f"/proc/{pid}").stat().st_uid == home.account.uid != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's servers run as himself and can enter what he can")
def test_a_home_that_the_servers_cannot_enter_is_refused_and_not_opened(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(StackError, match="cannot enter"):
        open_home(closed / "home")
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def test_an_interrupted_creation_is_repeated(stack_home: Path) -> None:
    home = open_home(stack_home)
    (home.root / "postgres.unfinished").mkdir()
    (home.root / "postgres.unfinished" / "half").write_text("a cluster")
    initialise_postgres(home, durable=False)
    assert not (home.root / "postgres.unfinished").exists()
    assert (home.postgres / "cluster" / "PG_VERSION").exists()


def test_a_cluster_of_another_version_is_left_alone(stack_home: Path) -> None:
    home = open_home(stack_home)
    (home.postgres / "cluster").mkdir()
    (home.postgres / "cluster" / "PG_VERSION").write_text("9\n")
    with pytest.raises(StackError, match="made by PostgreSQL 9"):
        initialise_postgres(home)


def test_the_launch_opens_no_network_port(stack_home: Path) -> None:
    assert "listen_addresses=" in postgres_launch(open_home(stack_home)).argv


def test_a_user_without_a_name_gets_an_error_that_names_initdbs_need(monkeypatch: pytest.MonkeyPatch) -> None:
    nameless = next(uid for uid in range(70_000, 80_000) if not _has_name(uid))
    monkeypatch.setattr(os, "geteuid", lambda: nameless)
    with pytest.raises(StackError, match=f"uid {nameless} has none"):
        named_account(Account(nameless, nameless))


def test_an_account_with_a_name_makes_its_own_cluster() -> None:
    root = Account(0, 0)
    assert named_account(root) == root


def _has_name(uid: int) -> bool:
    return any(entry.pw_uid == uid for entry in pwd.getpwall())
