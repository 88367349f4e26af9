"""The real services together: their resources at rest, and no remains after their end."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shared.runtime.identity import Identity, identify
from shared.runtime.stack_state import State
from treadle.lab.bench.processes import memory_bytes
from treadle.stack.services import chosen_services
from treadle.testing.stack import RunningStack, running_stack

MOST_MEMORY_BYTES = 600_000_000
"""The whole idle stack, proportional set size; some 390 MB, a third of it for the compiled search (ADR 0012)."""


@pytest.fixture
def stack(stack_home: Path) -> Iterator[RunningStack]:
    with running_stack(stack_home) as running:
        yield running


def processes(stack: RunningStack) -> list[psutil.Process]:
    supervisor = psutil.Process(stack.supervisor.pid)
    return [supervisor, *supervisor.children(recursive=True)]


def test_every_service_is_healthy_and_all_are_small(stack: RunningStack) -> None:
    names = {"postgres", "valkey", *(spec.name for spec in chosen_services("", {}))}
    assert {service.name: service.state for service in stack.state.services} == dict.fromkeys(names, State.HEALTHY)
    assert memory_bytes(stack.supervisor.pid) < MOST_MEMORY_BYTES


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_of_a_real_stack_outlives_its_supervisor(stack: RunningStack, number: signal.Signals) -> None:
    everyone = [found for process in processes(stack) if (found := identify(process.pid)) is not None]
    stack.supervisor.send_signal(number)
    stack.supervisor.wait(60)
    assert survivors(everyone) == []


def survivors(everyone: list[Identity]) -> list[Identity]:
    """Processes that still run after 20 s at most; the kernel ends those of a killed supervisor one after the other."""
    deadline = time.monotonic() + 20
    while (left := [process for process in everyone if process.alive()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
