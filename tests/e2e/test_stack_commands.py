"""``treadle up``, ``down`` and ``status`` as a person types them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle.cli.main import COMMANDS, load_command
from treadle.stack.services import has_gpus
from treadle.testing.servers import clean_environment

TREADLE = Path(sys.executable).with_name("treadle")
HEAVY = ("fastapi", "sqlalchemy", "redis", "aiohttp", "numpy", "pydantic", "asyncio")


@pytest.fixture
def environ(stack_home: Path) -> dict[str, str]:
    return {
        **clean_environment(),
        "TREADLE_HOME": str(stack_home),
        "STACK_SERVICES": "echo=treadle.testing.echo:create_app",
    }


def treadle(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TREADLE, *arguments], env=environ, capture_output=True, text=True, timeout=120, check=False)


def status(environ: dict[str, str]) -> list[dict[str, Any]]:
    services: list[dict[str, Any]] = json.loads(treadle(environ, "status", "--json").stdout)["services"]
    return services


@pytest.fixture
def detached(environ: dict[str, str]) -> Iterator[dict[str, str]]:
    started = treadle(environ, "up", "--detach")
    assert started.returncode == 0, started.stderr
    assert "echo             healthy" in started.stdout
    yield environ
    assert treadle(environ, "down").returncode == 0


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; from treadle.cli.main import app; app(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = done.stdout.split()
    assert "up" in loaded
    assert not [name for name in HEAVY if name in loaded]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_that_is_named_can_be_loaded(name: str) -> None:
    command = load_command(name)
    assert command.name == name
    assert command.help


def test_status_lists_services_as_text_and_as_json(detached: dict[str, str]) -> None:
    reported = json.loads(treadle(detached, "status", "--json").stdout)
    services = reported["services"]
    assert reported["phase"] == "up"
    assert {service["name"] for service in services} == {"postgres", "valkey", "echo"}
    assert {service["state"] for service in services} == {"healthy"}
    assert all(set(service) == {"name", "pid", "url", "state", "restarts", "last_end"} for service in services)
    assert "healthy" in treadle(detached, "status").stdout


def test_status_has_restarts_as_text_and_as_json(detached: dict[str, str]) -> None:
    def echo() -> dict[str, Any]:
        services = json.loads(treadle(detached, "status", "--json").stdout)["services"]
        return next(service for service in services if service["name"] == "echo")

    first = echo()
    assert (first["restarts"], first["last_end"]) == (0, "")
    os.kill(first["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 30
    while (again := echo())["state"] != "healthy" or again["pid"] == first["pid"]:
        assert time.monotonic() < deadline, again
        time.sleep(0.1)
    assert (again["restarts"], again["last_end"]) == (1, "killed by SIGKILL")
    assert "last end: killed by SIGKILL" in treadle(detached, "status").stdout


def test_up_beside_a_running_stack_reports_it(detached: dict[str, str]) -> None:
    for arguments in (["up", "--detach"], ["up"]):
        again = treadle(detached, *arguments)
        assert again.returncode == 0
        assert "already up" in again.stdout
        assert "settings that have changed since are not applied" in again.stdout


def test_up_on_another_port_than_that_of_the_running_stack_is_an_error(environ: dict[str, str]) -> None:
    proxy = {**environ, "STACK_SERVICES": "proxy=treadle.testing.echo:create_app"}
    started = treadle(proxy, "up", "--detach", "--port", "0")
    assert started.returncode == 0, started.stderr
    try:
        (url,) = (one["url"] for one in status(proxy) if one["name"] == "proxy")
        own = url.rpartition(":")[2]
        other = str(int(own) % 65535 + 1)
        for arguments in (["up", "--detach", "--port", other], ["up", "--port", other]):
            refused = treadle(proxy, *arguments)
            assert refused.returncode == 1
            assert f"is already up and listens on {url}, not on port {other}" in refused.stderr
        for port in (own, "0"):
            again = treadle(proxy, "up", "--detach", "--port", port)
            assert (again.returncode, "already up" in again.stdout) == (0, True)
    finally:
        treadle(proxy, "down")


def test_a_start_that_makes_progress_may_exceed_its_limit(environ: dict[str, str]) -> None:
    """Durations are plain seconds here, as messages and documents have them."""
    busy = {**environ, "STACK_START_TIMEOUT": "4", "STACK_GRACE": "15", "ECHO_BUSY_S": "7"}
    started = treadle(busy, "up", "--detach")
    assert started.returncode == 0, started.stderr
    assert treadle(busy, "down").returncode == 0


def test_a_start_without_progress_ends_with_the_name_of_its_limit(environ: dict[str, str]) -> None:
    failed = treadle({**environ, "STACK_START_TIMEOUT": "4", "ECHO_IDLE_S": "120"}, "up", "--detach")
    assert failed.returncode == 1
    assert "echo was not ready after 4 s without progress (STACK_START_TIMEOUT=4)" in failed.stderr


@pytest.mark.parametrize("command", [["up"], ["up", "--detach"]])
def test_a_closed_home_is_refused_by_the_name_of_the_closed_folder(command: list[str]) -> None:
    """Root's servers run under another account; an ordinary user is stopped by a folder without permissions."""
    outer = Path(tempfile.mkdtemp(prefix="treadle-", dir="/tmp"))
    outer.chmod(0o755)
    try:
        closed = outer / "closed"
        closed.mkdir(mode=0o700 if os.geteuid() == 0 else 0)
        for home in (closed, closed / "home"):
            refused = treadle({**clean_environment(), "TREADLE_HOME": str(home)}, *command)
            assert refused.returncode == 1
            (line,) = refused.stderr.splitlines()
            assert f"TREADLE_HOME {home}: {closed} is closed to" in line
    finally:
        shutil.rmtree(outer)


@pytest.mark.parametrize(
    "command", ["up", "up --detach", "down", "status", "status --json", "upgrade", "repair", "demo", "grade FILE"]
)
def test_a_home_that_is_a_file_is_refused_in_one_line(tmp_path: Path, command: str) -> None:
    file = tmp_path / "a-file"
    line = json.dumps({"id": "a", "params": {"code": "def f(): return 1", "tests": "assert f() == 1"}}) + "\n"
    file.write_text(line)
    arguments = [str(file) if word == "FILE" else word for word in command.split()]
    refused = treadle(clean_environment(), *arguments, "--home", str(file))
    assert refused.returncode not in (0, 2), refused.stdout
    (printed,) = refused.stderr.splitlines()
    assert str(file) in printed
    assert "folder" in printed
    assert "another user" not in printed
    assert file.read_text() == line


def test_status_and_down_without_a_stack(environ: dict[str, str]) -> None:
    status = treadle(environ, "status", "--json")
    assert (status.returncode, json.loads(status.stdout)) == (3, {"phase": None, "services": [], "health": None})
    down = treadle(environ, "down")
    assert down.returncode == 0
    assert "no stack is up" in down.stdout


def test_the_foreground_shows_every_log_and_ctrl_c_ends_it(environ: dict[str, str]) -> None:
    argv = [str(TREADLE), "up"]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True) as up:
        assert up.stdout is not None
        lines = []
        for line in up.stdout:
            lines.append(line)
            if "the stack is up" in line:
                up.send_signal(signal.SIGINT)
        assert up.wait(30) == 0
    view = "".join(lines)
    assert "postgres | LOG:  database system is ready to accept connections" in view
    assert "treadle  | the stack is down" in view
    assert treadle(environ, "status").returncode == 3


def test_a_stack_that_does_not_come_up_ends_with_its_reason(environ: dict[str, str]) -> None:
    failed = treadle({**environ, "ECHO_CRASH": "1"}, "up", "--detach")
    assert failed.returncode == 1
    assert "echo does not start" in failed.stderr
    assert "ECHO_CRASH is set: crash" in failed.stderr
    assert treadle(environ, "status").returncode == 3


@pytest.mark.skipif(has_gpus({}), reason="a GPU manager reads the file")
def test_a_file_of_model_services_on_a_machine_without_a_gpu_is_a_warning(
    environ: dict[str, str], stack_home: Path
) -> None:
    everything = {name: value for name, value in environ.items() if name != "STACK_SERVICES"}
    started = treadle({**everything, "GPU_MANAGER_SERVICES": "services.json"}, "up", "--detach", "--port", "0")
    try:
        assert started.returncode == 0, started.stderr
        (line,) = started.stderr.splitlines()
        assert line.startswith("treadle up: WARNING: GPU_MANAGER_SERVICES names services.json, but this machine has no")
        assert "GPU_MANAGER_DEVICES='[" in line
        assert "WARNING: GPU_MANAGER_SERVICES" in (stack_home / "log" / "treadle.log").read_text(), (
            "as in the foreground"
        )
    finally:
        treadle(everything, "down")


def test_a_misspelt_setting_is_an_error(environ: dict[str, str]) -> None:
    failed = treadle({**environ, "STACK_GRACEFUL": "1"}, "up", "--detach")
    assert failed.returncode == 1
    assert "STACK_GRACEFUL" in failed.stderr


@pytest.mark.parametrize("command", [["up"], ["up", "--detach"], ["demo", "--quick"]])
def test_an_invalid_setting_is_reported_in_one_line(environ: dict[str, str], command: list[str]) -> None:
    failed = treadle({**environ, "STACK_GRACE": "abc", "STACK_LOG_MIB": "0"}, *command)
    assert failed.returncode != 0
    assert failed.stderr.splitlines() == [
        f"treadle {command[0]}: STACK_GRACE is 'abc': it should be seconds (15) or an ISO 8601 duration (PT15S)",
        "STACK_LOG_MIB is '0': it should be greater than or equal to 1",
    ]
    assert treadle(environ, "status").returncode == 3


@pytest.mark.parametrize("command", [["openapi"], ["demo", "--quick"]])
def test_shared_settings_are_checked_too(environ: dict[str, str], command: list[str]) -> None:
    failed = treadle({**environ, "TREADLE_LOG_JSON": "maybe"}, *command)
    assert failed.returncode != 0
    assert failed.stderr == f"treadle {command[0]}: TREADLE_LOG_JSON is 'maybe': it should be true or false\n"


def test_a_services_own_wrong_setting_is_its_one_last_line(environ: dict[str, str]) -> None:
    failed = treadle({**environ, "STACK_SERVICES": "cpu_manager", "CPU_MANAGER_CORES": "abc"}, "up", "--detach")
    assert failed.returncode == 1
    *_, reason, where, line = failed.stderr.splitlines()
    assert reason == "treadle up: the stack did not come up: cpu_manager does not start: exit status 1"
    assert "cpu_manager.log" in where
    assert line.strip() == "CPU_MANAGER_CORES is 'abc': it should be a whole number"


def test_a_detached_stack_outlives_its_terminal(environ: dict[str, str]) -> None:
    code = f"import subprocess; subprocess.run([{str(TREADLE)!r}, 'up', '--detach'], check=True)"
    shell = subprocess.Popen([sys.executable, "-c", code], env=environ, start_new_session=True)
    assert shell.wait(60) == 0
    assert treadle(environ, "status").returncode == 0
    assert treadle(environ, "down").returncode == 0
