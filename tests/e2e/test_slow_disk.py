"""Durability at its highest cost: acknowledged writes survive Valkey, however slow its disk is."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from tests.e2e.campaign import grade_through
from tests.e2e.processes import running_service
from tests.e2e.slow_disk import FSYNC_S, slow_fsync, valkey_on_slow_disk
from tests.e2e.trainer import trainer_at
from treadle.stack.home import Home, open_home
from treadle.stack.valkey import valkey_url

SIZE = 400


@pytest.fixture
def home(stack_home: Path) -> Home:
    return open_home(stack_home)


@pytest.fixture
def library(home: Home) -> Path:
    return slow_fsync(home.programs)


def test_the_disk_is_slow(home: Home, library: Path) -> None:
    with valkey_on_slow_disk(home, library), redis.Redis.from_url(valkey_url(home)) as client:
        began = time.monotonic()
        client.set("accepted", "yes")
        assert time.monotonic() - began >= FSYNC_S


async def test_a_killed_valkey_on_a_slow_disk_loses_no_answer(home: Home, library: Path, exit_stack: ExitStack) -> None:
    url = valkey_url(home)
    valkey = exit_stack.enter_context(valkey_on_slow_disk(home, library))
    proxy = exit_stack.enter_context(running_service("proxy", url))
    exit_stack.enter_context(running_service("cpu_manager", url))

    async def kill() -> None:
        valkey.kill()
        valkey.wait(30)
        exit_stack.enter_context(valkey_on_slow_disk(home, library))

    async with trainer_at(proxy.url) as trainer:
        await grade_through(trainer, kill, size=SIZE, key="slow")
