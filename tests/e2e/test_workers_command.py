"""`treadle workers` against a router of its own process."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys

import pytest

from tests.e2e.processes import Service, running_service
from tests.services.trajectory_router.engine import running_engine
from treadle.testing.servers import clean_environment


async def treadle(router: Service, *arguments: str, **environ: str) -> tuple[int, str, str]:
    """Status, output and errors of a command."""
    command = [sys.executable, "-m", "treadle.cli.main", "workers", *arguments, "--url", router.url]
    done = await asyncio.to_thread(
        subprocess.run, command, env={**clean_environment(), **environ}, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


async def test_workers_are_added_listed_drained_and_removed(redis_url: str) -> None:
    with running_service("trajectory_router", redis_url) as router:
        status, output, _ = await treadle(router)
        assert (status, output) == (0, "there is no worker; add one with treadle workers add http://HOST:PORT\n")
        async with running_engine("e") as engine:
            status, output, errors = await treadle(router, "add", engine.url, "--most-calls", "7")
            assert status == 0, errors
            worker = re.fullmatch(rf"{re.escape(engine.url)} \((\w+)\): registered\n", output)
            assert worker is not None, output
            status, output, _ = await treadle(router, "ls", "--json")
            (listed,) = json.loads(output)["workers"]
            assert (listed["id"], listed["url"], listed["most_calls"]) == (worker[1], engine.url, 7)
            status, output, _ = await treadle(router, "ls", COLUMNS="200")
            assert engine.url in output
            assert "0/7" in output
            assert (await treadle(router, "drain", engine.url))[0] == 0
            assert (await treadle(router, "rm", worker[1]))[0] == 0
        status, output, errors = await treadle(router, "rm", worker[1])
        assert (status, output) == (2, "")
        assert "GET /workers lists them" in errors


@pytest.mark.parametrize("key", ["", "another"])
async def test_without_the_operators_key_the_command_says_so(redis_url: str, key: str) -> None:
    with running_service("trajectory_router", redis_url, TRAJECTORY_ROUTER_OPERATOR_KEY="s3cret") as router:
        status, _, errors = await treadle(router, "ls", *(("--key", key) if key else ()))
        assert status == 2
        assert "operator's key" in errors
        assert "s3cret" not in errors
        assert (await treadle(router, "ls", TRAJECTORY_ROUTER_OPERATOR_KEY="s3cret"))[0] == 0


async def test_without_a_router_the_command_says_how_to_start_one(tmp_path: object) -> None:
    gone = Service("trajectory_router", "http://127.0.0.1:9", None)  # type: ignore[arg-type]  # nothing listens there
    status, _, errors = await treadle(gone, "ls")
    assert status == 3
    assert "no router answers at http://127.0.0.1:9" in errors
    command = [sys.executable, "-m", "treadle.cli.main", "workers"]
    environ = {**clean_environment(), "TREADLE_HOME": str(tmp_path)}
    done = await asyncio.to_thread(subprocess.run, command, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "treadle up" in done.stderr) == (3, True)
