"""Hooks of the operator: real processes, and a real HTTP server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
import pytest
from aiohttp import web

from services.gpu_manager.hooks import HookFailed, hook_of
from shared.runtime.http import open_http
from tests.services.gpu_manager.engines import running_engine
from tests.shared.bus.soon import soon

CALL = {"node": "n", "gpus": [0, 1], "event": "release"}


async def call(setting: str, limit_s: float = 30.0) -> None:
    async with open_http(lambda _: "") as http:
        await hook_of(setting, limit_s).call(http, "release", "n", (0, 1))


def python(program: str, *given: str) -> str:
    return json.dumps([sys.executable, "-c", program, *given])


async def test_a_command_gets_the_call(tmp_path: Path) -> None:
    written = tmp_path / "call"
    program = "import os, sys; open(sys.argv[1], 'w').write(sys.stdin.read() + os.environ['TREADLE_GPUS'])"
    await call(python(program, str(written)))
    text = written.read_text()
    assert (json.loads(text[:-3]), text[-3:]) == (CALL, "0,1")


async def test_a_command_that_reads_nothing_and_leaves_a_child_has_succeeded() -> None:
    program = "import subprocess; subprocess.Popen(['sleep', '30'])"
    await call(python(program), limit_s=20.0)


async def test_a_failed_command_says_why() -> None:
    with pytest.raises(HookFailed, match="status 3: no such GPU"):
        await call(python("import sys; print('no such GPU'); sys.exit(3)"))
    with pytest.raises(HookFailed, match="cannot be started"):
        await call('["/no/such/command"]')


async def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = (
        "import os, subprocess, sys, time; child = subprocess.Popen(['sleep', '60']);"
        "open(sys.argv[1], 'w').write(f'{os.getpid()} {child.pid}'); time.sleep(60)"
    )
    with pytest.raises(HookFailed, match="within 2 s"):
        await call(python(program, str(pids)), limit_s=2.0)

    async def ended() -> bool:
        found = [psutil.Process(pid) for pid in map(int, pids.read_text().split()) if psutil.pid_exists(pid)]
        return all(one.status() == psutil.STATUS_ZOMBIE for one in found)

    await soon(ended)


async def test_a_webhook_gets_the_call_and_its_status_decides() -> None:
    async def ok(_: web.Request) -> web.Response:
        return web.Response(status=204)

    async def busy(_: web.Request) -> web.Response:
        return web.Response(status=503)

    async with running_engine(ok, busy) as server:
        await call(server.url + "/gpus")
        assert (server.paths, server.bodies) == (["/gpus"], [CALL])
        with pytest.raises(HookFailed, match="503"):
            await call(server.url + "/gpus")
    with pytest.raises(HookFailed, match="refused"):
        await call(server.url + "/gpus")


async def test_no_hook_succeeds() -> None:
    await call("")


@pytest.mark.parametrize("setting", ["release-gpus", "[]", '[""]', '{"command": "x"}', "[1]"])
def test_a_setting_that_is_no_hook_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match="write"):
        hook_of(setting, 1.0)
