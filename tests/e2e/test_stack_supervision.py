"""The supervisor with real processes: a service of twenty lines between the real servers."""

import contextlib
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from shared.runtime.identity import Identity, identify
from shared.runtime.stack_state import StackError, State, is_supervised
from treadle.stack.operate import current_state
from treadle.testing.stack import RunningStack, running_stack

ECHO = "echo=treadle.testing.echo:create_app"


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def everyone(stack: RunningStack) -> list[Identity]:
    """Each process of the stack, with all descendants."""
    supervisor = psutil.Process(stack.supervisor.pid)
    found = [identify(process.pid) for process in (supervisor, *supervisor.children(recursive=True))]
    return [process for process in found if process is not None]


def survivors(processes: list[Identity], seconds: float = 15) -> list[Identity]:
    deadline = time.monotonic() + seconds
    while (left := [process for process in processes if process.alive()]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def await_state(stack: RunningStack, name: str, state: State) -> None:
    deadline = time.monotonic() + 60
    while stack.service(name).state is not state:
        assert time.monotonic() < deadline, stack.service(name)
        time.sleep(0.02)


@pytest.fixture
def stack(stack_home: Path) -> Iterator[RunningStack]:
    with running_stack(stack_home, services=ECHO) as running:
        yield running


def test_everything_answers_once_it_is_up(stack: RunningStack) -> None:
    assert {service.name for service in stack.state.services} == {"postgres", "valkey", "echo"}
    assert {service.state for service in stack.state.services} == {State.HEALTHY}
    assert get(stack.urls["echo"]) == str(stack.pids["echo"])
    with redis.Redis.from_url(stack.redis_url) as client:
        assert client.config_get("appendfsync") == {"appendfsync": "always"}


@pytest.mark.parametrize("name", ["echo", "valkey", "postgres"])
def test_a_killed_service_restarts_at_the_same_address(stack: RunningStack, name: str) -> None:
    address = stack.urls[name]
    pid = stack.kill(name)
    assert stack.await_healthy(name, other_than=pid) != pid
    assert stack.urls[name] == address
    assert f"{name} ended (killed by SIGKILL)" in stack.log("treadle")
    assert stack.service(name).restarts == 1


def test_a_client_that_connects_during_a_restart_is_served(stack: RunningStack) -> None:
    pid = stack.kill("echo")
    assert int(get(stack.urls["echo"])) != pid


def test_a_crash_looping_service_is_failed_and_its_socket_closes(stack: RunningStack) -> None:
    url = stack.urls["echo"]
    while stack.service("echo").state is not State.FAILED:
        with contextlib.suppress(OSError, urllib.error.URLError):  # it dies while it answers
            get(f"{url}/exit")
        assert stack.service("echo").restarts < 10
    assert stack.service("echo").last_end == "exit status 7"
    with pytest.raises(urllib.error.URLError, match="refused"):
        get(url)


def test_a_daemon_left_behind_is_swept(stack: RunningStack) -> None:
    daemon = identify(int(get(f"{stack.urls['echo']}/orphan")))
    assert daemon is not None
    stack.supervisor.send_signal(signal.SIGTERM)
    assert stack.supervisor.wait(30) == 0
    assert not daemon.alive()


def test_a_daemon_of_a_running_service_is_not_killed(stack: RunningStack) -> None:
    daemon = identify(int(get(f"{stack.urls['echo']}/orphan")))
    assert daemon is not None
    stack.kill("postgres", signal.SIGSTOP)
    stack.kill("postgres", signal.SIGCONT)
    for name in ("valkey", "postgres"):
        stack.await_healthy(name, other_than=stack.kill(name))
    assert daemon.alive()


@pytest.mark.parametrize("path", ["child", "leader"])
def test_child_processes_of_a_killed_service_are_ended(stack: RunningStack, path: str) -> None:
    left = identify(int(get(f"{stack.urls['echo']}/{path}")))
    assert left is not None
    stack.await_healthy("echo", other_than=stack.kill("echo"))
    assert survivors([left]) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_process_behind(stack: RunningStack, number: signal.Signals) -> None:
    processes = everyone(stack)
    assert len(processes) > 5
    stack.supervisor.send_signal(number)
    assert stack.supervisor.wait(30) == 0
    assert survivors(processes) == []
    assert not is_supervised(stack.home.root)
    assert not list(stack.home.sockets.iterdir())


def test_killing_the_supervisor_leaves_no_process_behind(stack: RunningStack) -> None:
    processes = everyone(stack)
    stack.supervisor.kill()
    stack.supervisor.wait(10)
    assert survivors(processes) == []
    assert current_state(stack.home.root) is None


def test_data_outlives_the_stack(stack_home: Path) -> None:
    with running_stack(stack_home, services=ECHO) as first, redis.Redis.from_url(first.redis_url) as client:
        client.set("accepted", "yes")
    with running_stack(stack_home, services=ECHO) as second, redis.Redis.from_url(second.redis_url) as client:
        assert client.get("accepted") == b"yes"


def test_the_next_stack_starts_after_a_killed_supervisor(stack_home: Path) -> None:
    with running_stack(stack_home, services=ECHO) as first:
        first.supervisor.kill()
        first.supervisor.wait(10)
        with running_stack(stack_home, services=ECHO) as second:
            assert get(second.urls["echo"])


def test_two_homes_are_two_stacks(stack: RunningStack, tmp_path: Path) -> None:
    with running_stack(stack.home.root.with_name("other"), services=ECHO) as other:
        assert not set(other.pids.values()) & set(stack.pids.values())
        assert get(other.urls["echo"]) != get(stack.urls["echo"])
    assert get(stack.urls["echo"]) == str(stack.pids["echo"])


def test_one_home_is_one_stack(stack: RunningStack) -> None:
    with (
        pytest.raises(StackError, match="already up"),
        running_stack(stack.home.root, services=ECHO),
    ):
        pass
    assert get(stack.urls["echo"]) == str(stack.pids["echo"])


def test_a_service_that_cannot_start_is_reported_with_its_last_lines(stack_home: Path) -> None:
    with (
        pytest.raises(StackError, match=r"echo does not start: exit status 1\n(.|\n)*ECHO_CRASH is set: crash"),
        running_stack(stack_home, services=ECHO, environ={"ECHO_CRASH": "1"}),
    ):
        pass
    assert not is_supervised(stack_home)


def test_a_taken_port_is_named(stack: RunningStack) -> None:
    port = stack.urls["echo"].rpartition(":")[2]
    with (
        pytest.raises(StackError, match=f"cannot listen on 127.0.0.1:{port}: .*; choose another port with ECHO_PORT$"),
        running_stack(stack.home.root.with_name("other"), services=ECHO, environ={"ECHO_PORT": port}),
    ):
        pass


def test_foreign_servers_are_used_with_a_warning(stack_home: Path, redis_url: str, empty_database_url: str) -> None:
    foreign = {"TREADLE_REDIS_URL": redis_url, "TREADLE_DATABASE_URL": empty_database_url}
    with running_stack(stack_home, services=ECHO, environ=foreign) as stack:
        assert set(stack.pids) == {"echo"}
        assert stack.service("valkey").state is State.EXTERNAL
        assert stack.urls["postgres"] == empty_database_url
        assert "WARNING" in stack.log("prepare")
        assert "appendonly is 'no'" in stack.log("prepare")


def test_a_foreign_server_that_does_not_answer_is_named(stack_home: Path) -> None:
    foreign = {"TREADLE_REDIS_URL": "redis://127.0.0.1:1/0"}
    with (
        pytest.raises(StackError, match="TREADLE_REDIS_URL does not answer"),
        running_stack(stack_home, services=ECHO, environ=foreign),
    ):
        pass
