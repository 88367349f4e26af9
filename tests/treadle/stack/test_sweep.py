"""Processes of a killed supervisor are ended, and no others."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.runtime.identity import Identity, identify
from shared.runtime.stack_state import Phase, ServiceState, StackState, State
from treadle.stack.sweep import sweep


@pytest.fixture
def leftover() -> Iterator[subprocess.Popen[str]]:
    """A service with a child of its own: a session of two."""
    command = ["/bin/sh", "-c", "sleep 300 & echo $!; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        yield process
        process.kill()


def state_of(process: Identity) -> StackState:
    service = ServiceState("echo", process.pid, "http://127.0.0.1:1", State.HEALTHY, started=process.started)
    return StackState(1, 1, Phase.UP, (service,))


def test_a_recorded_service_and_its_children_are_ended(leftover: subprocess.Popen[str]) -> None:
    assert leftover.stdout is not None
    leader, child = identify(leftover.pid), identify(int(leftover.stdout.readline()))
    assert leader is not None
    assert child is not None
    assert sweep(state_of(leader), Path("/nonexistent")) == sorted([leader.pid, child.pid])
    assert not leader.alive()
    assert not child.alive()


def test_children_are_ended_even_when_the_service_is_gone(leftover: subprocess.Popen[str]) -> None:
    assert leftover.stdout is not None
    leader, child = identify(leftover.pid), identify(int(leftover.stdout.readline()))
    assert leader is not None
    assert child is not None
    leftover.kill()
    leftover.wait(10)
    assert sweep(state_of(leader), Path("/nonexistent")) == [child.pid]
    assert not child.alive()


def test_another_process_with_a_recorded_pid_is_not_killed(leftover: subprocess.Popen[str]) -> None:
    assert leftover.stdout is not None
    leader, child = identify(leftover.pid), identify(int(leftover.stdout.readline()))
    assert leader is not None
    assert child is not None
    assert sweep(state_of(Identity(leader.pid, leader.started - 1)), Path("/nonexistent")) == []
    assert leader.alive()
    assert child.alive()
    sweep(state_of(leader), Path("/nonexistent"))
