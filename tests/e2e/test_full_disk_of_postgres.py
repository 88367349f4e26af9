"""Postgres alone on a full disk: accepted work is answered, and answers are archived again once there is space."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from tests.e2e.full_disk import SmallDisk, small_disk
from treadle.stack.home import open_home
from treadle.testing.servers import clean_environment, temporary_home
from treadle.testing.stack import RunningStack, running_stack

DISK_MIB = 400
WITHIN_S = 120.0
RECOVERY_S = 60.0
"""The promise: all work continues at most so long after space was freed."""
SETTINGS = {
    "CPU_MANAGER_ENGINE": "none",
    "CPU_MANAGER_CORES": "2",
    "PROXY_ARCHIVE_AFTER_S": "1",
    "PROXY_DISK_RESERVE_MIB": "64",
}
SILENT = "Postgres does not answer: no batch history is written, and nothing is planned"
ANSWER_BYTES = 20_000
"""Incompressible, so that rows take space."""

Json = dict[str, Any]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with temporary_home() as root:
        yield root


@pytest.fixture(scope="module")
def disk(home: Path) -> Iterator[SmallDisk]:
    """The folder `postgres` of the home, on a disk of its own."""
    opened = open_home(home)
    opened.postgres.rmdir()
    with small_disk(opened.postgres, mebibytes=DISK_MIB) as mounted:
        os.chown(mounted.root, opened.account.uid, opened.account.gid)
        mounted.root.chmod(0o700)
        yield mounted


@pytest.fixture(scope="module")
def stack(home: Path, disk: SmallDisk) -> Iterator[RunningStack]:
    with running_stack(home, environ=SETTINGS) as running:
        yield running
        disk.free()
        for name in ("treadle", "postgres", "proxy", "scaling_planner"):
            log = running.log(name)
            sys.stderr.write(f"---- {name}\n{log[:20_000]}\n...\n{log[20_000:][-10_000:]}\n")


@pytest.fixture
async def http(stack: RunningStack) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(stack.urls["proxy"], timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session


async def submit(http: aiohttp.ClientSession, number: int) -> tuple[int, Json]:
    """An action that prints its own number after half a second, and much more than that."""
    code = f"import os, time\ntime.sleep(0.5)\nprint({number}, os.urandom({ANSWER_BYTES // 2}).hex())"
    body = {"kind": "code.run", "params": {"code": code}, "timeout_s": 60, "request_id": f"n{number}"}
    async with http.post("/v1/actions", json=body) as response:
        return response.status, await response.json(content_type=None)


async def answered(http: aiohttp.ClientSession, number: int, action: str, within_s: float = WITHIN_S) -> None:
    """Wait for the action's own right answer."""
    async with asyncio.timeout(within_s):
        status, answer = 0, {}
        while status != 200:
            async with http.get(f"/v1/actions/{action}?wait=10") as response:
                status, answer = response.status, await response.json(content_type=None)
                assert status in (200, 202, 503), answer
    assert answer["ended"] == "ok", answer
    assert answer["output"]["run_result"]["stdout"].split()[0] == str(number), answer


async def until(condition: Callable[[], Awaitable[bool]], within_s: float = WITHIN_S) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def archived(stack: RunningStack, actions: set[str]) -> bool:
    """Return whether Postgres has the answers of all of them."""
    try:
        connection = await asyncpg.connect(stack.database_url.replace("+asyncpg", ""), timeout=5)
    except (OSError, asyncpg.PostgresError):
        return False
    try:
        rows = await connection.fetch("SELECT action FROM answers WHERE action = ANY($1)", list(actions))
    finally:
        await connection.close()
    return {str(row["action"]) for row in rows} == actions


async def ended(stack: RunningStack) -> bool:
    """Make the server begin another file of its log; without space for it the server ends."""
    try:
        connection = await asyncpg.connect(stack.database_url.replace("+asyncpg", ""), timeout=5)
        try:
            await connection.execute("SELECT txid_current(); SELECT pg_switch_wal()")
        finally:
            await connection.close(timeout=5)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return "PANIC" in stack.log("postgres")
    return False


def status_text(stack: RunningStack) -> str:
    """Output of `treadle status`."""
    environ = {**clean_environment(), "TREADLE_HOME": str(stack.home.root)}
    status = [str(Path(sys.executable).with_name("treadle")), "status"]
    return subprocess.run(status, env=environ, capture_output=True, text=True, timeout=60, check=False).stdout


def postgres_processes() -> str:
    """What each process of Postgres waits for: read when the server does not come back."""
    found = ["---- processes of Postgres"]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if "postgres" in command and "pytest" not in command:
                files = [str(link.readlink()) for link in (folder / "fd").iterdir()]
                parts = [(folder / name).read_text() for name in ("wchan", "syscall", "stat", "stack")]
                found += [f"{folder.name} {command}", *parts, f"files: {files}"]
        except OSError:
            continue  # it has ended
    return "\n".join(found) + "\n"


async def test_postgres_alone_meets_a_full_disk(
    stack: RunningStack, disk: SmallDisk, http: aiohttp.ClientSession
) -> None:
    async def problems() -> list[str]:
        async with http.get("/v1/health") as response:
            return list((await response.json())["problems"])

    async def failures() -> float:
        async with http.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        return next(
            float(line.split()[1]) for line in lines if line.startswith("treadle_proxy_archive_failures_total ")
        )

    before = await submit(http, 0)
    assert before[0] in (200, 202), before
    await answered(http, 0, before[1]["id"])
    await until(lambda: archived(stack, {before[1]["id"]}))

    actions: dict[int, str] = {}
    for number in range(1, 21):
        status, body = await submit(http, number)
        assert status in (200, 202), body
        actions[number] = body["id"]
    disk.fill()
    for number, action in actions.items():
        await answered(http, number, action)

    async def has_failed() -> bool:
        return await failures() > 0

    await until(has_failed)
    await until(lambda: ended(stack))

    async def is_silent() -> bool:
        return SILENT in await problems()

    await until(is_silent)
    assert any("the disk of the stores" in problem and str(disk.root) in problem for problem in await problems())
    assert f"problem: {SILENT}" in await asyncio.to_thread(status_text, stack)

    async with http.get("/readyz") as response:
        assert response.status == 200, "what was accepted is answered without Postgres"
    status, body = await submit(http, 100)
    assert (status, str(disk.root) in body["detail"]) == (503, True), body
    assert not stack.supervisor.poll()

    disk.free()

    async def goes_on() -> bool:
        return await archived(stack, set(actions.values())) and SILENT not in await problems()

    try:
        await until(goes_on, within_s=RECOVERY_S)
    except TimeoutError:
        sys.stderr.write(postgres_processes())
        raise
    async with asyncio.timeout(WITHIN_S):
        while True:
            status, body = await submit(http, 200)
            if status in (200, 202):
                break
            await asyncio.sleep(0.2)
    await answered(http, 200, body["id"])
    await answered(http, 1, actions[1])
