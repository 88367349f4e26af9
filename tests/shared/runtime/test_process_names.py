"""Names of processes: the end of a process is found on its own machine, and a living one is not judged ended."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from shared.runtime import process_names
from shared.runtime.identity import identify
from shared.runtime.process_names import has_ended, process_name

NAMED = "from shared.runtime.process_names import process_name; print(process_name(), flush=True); input()"


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process, and its name."""
    with subprocess.Popen(
        [sys.executable, "-c", NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_names_are_unique_and_short() -> None:
    names = {process_name() for _ in range(100)}

    assert len(names) == 100
    assert max(map(len, names)) <= 60
    assert not any(map(has_ended, names))


@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_has_ended_also_while_its_parent_has_not_waited_for_it(
    other: tuple[subprocess.Popen[str], str], signalled: signal.Signals
) -> None:
    process, name = other
    assert not has_ended(name)

    process.send_signal(signalled)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie now

    assert has_ended(name)
    process.wait()
    assert has_ended(name)


def test_a_suspended_process_has_not_ended(other: tuple[subprocess.Popen[str], str]) -> None:
    process, name = other
    process.send_signal(signal.SIGSTOP)

    assert not has_ended(name)


def test_a_process_that_got_the_pid_later_is_another_one(other: tuple[subprocess.Popen[str], str]) -> None:
    _, name = other
    start, _, started = name.rpartition(".")

    assert has_ended(f"{start}.{int(started) - 1}")


def test_a_process_of_another_user_is_judged_by_what_is_seen_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    own = process_name()

    def forbidden(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)

    assert not has_ended(own)
    assert has_ended(f"{own.rpartition('.')[0]}.1")


def test_a_process_that_cannot_be_seen_has_not_ended() -> None:
    """As under `hidepid`, and here because no file can be opened."""
    own = process_name()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        ended = has_ended(own), has_ended(f"{own.rpartition('.')[0]}.1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert ended == (False, False)


def test_a_process_of_another_machine_has_never_ended(other: tuple[subprocess.Popen[str], str]) -> None:
    process, name = other
    process.kill()
    process.wait()
    serial, space, pid, started = name.split(".")

    assert has_ended(name)
    assert not has_ended(f"{serial}.{space[::-1]}.{pid}.{started}")


@pytest.mark.parametrize("name", ["", "0123456789abcdef", "a.b.c.d", "a.b.1", "a.b.-1.2", "a.b.1.2.3"])
def test_any_other_name_is_no_ended_process(name: str) -> None:
    assert not has_ended(name)


def test_without_proc_a_name_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_names, "_space", lambda: "")
    name = process_name()

    assert len(name) == 16
    assert not has_ended(name)
    monkeypatch.setattr(process_names, "identify", lambda _pid: None)
    assert len(process_name()) == 16
    assert identify(os.getpid()) is not None
