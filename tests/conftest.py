"""Real servers for every test that asks: started once a session, a clean database each time.

``redis_url``           an emptied Valkey (append-only file off)
``database_url``        a fresh Postgres database with all migrations applied, cloned from a template
``empty_database_url``  a fresh Postgres database without any table
``llamacpp``            a real llama.cpp worker that serves Gemma 3 270M; ``llamacpp_pair``: it and another one
``stack_home``          a folder for TREADLE_HOME that root's servers can enter (``tmp_path`` is closed to them)
``interruptible``  processes of the test can be interrupted, wherever the test itself was started
``docker``              skips the test with the reason when no Docker engine answers
"""

import asyncio
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import redis

from tests.services.trajectory_router.engines.llamacpp import LlamaWorker, running_llamacpp
from treadle.testing.servers import PostgresServer, running_postgres, running_valkey, temporary_home

_numbers = itertools.count(1)

# Two shared cores: the duration of an example is no part of its result, and timings are never asserted.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.load_profile("house")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored, and their children inherit that; a terminal does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def stack_home() -> Iterator[Path]:
    with temporary_home() as root:
        yield root


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[str]:
    with temporary_home() as root, running_valkey(root, durable=False) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with temporary_home() as root, running_postgres(root) as server:
        yield server


@pytest.fixture(scope="session")
def llamacpp() -> Iterator[LlamaWorker]:
    """Do not kill it: other tests use it. `running_llamacpp` starts another one."""
    with running_llamacpp() as worker:
        yield worker


@pytest.fixture(scope="session")
def llamacpp_pair(llamacpp: LlamaWorker) -> Iterator[tuple[LlamaWorker, LlamaWorker]]:
    with running_llamacpp() as other:
        yield llamacpp, other


@pytest.fixture
def redis_url(valkey_server: str) -> str:
    with redis.Redis.from_url(valkey_server) as client:
        client.flushall()
    return valkey_server


@pytest.fixture
def empty_database_url(postgres_server: PostgresServer) -> Iterator[str]:
    yield from _database(postgres_server, "template1")


@pytest.fixture(scope="session")
def migrated_template(postgres_server: PostgresServer) -> str:
    from shared.store.migrate import upgrade

    asyncio.run(upgrade(postgres_server.create("migrated")))
    return "migrated"


@pytest.fixture
def database_url(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    yield from _database(postgres_server, migrated_template)


def _database(server: PostgresServer, template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    yield server.create(name, template)
    server.drop(name)


@pytest.fixture(scope="session")
def docker() -> None:
    """Ask for this (and carry the marker ``docker``) in a test that needs an engine."""
    try:
        answer = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        _no_engine(str(error))
    else:
        if answer.returncode != 0:
            _no_engine(answer.stderr.strip().splitlines()[-1])


def _no_engine(reason: str) -> None:
    if os.environ.get("TREADLE_REQUIRE_DOCKER"):  # set by .ci/run, where nothing is skipped
        pytest.fail(f"a Docker engine is required here and none answers: {reason}")
    pytest.skip(f"no Docker engine answers: {reason}")
