"""The agent's loop on real descriptors."""

import os
import signal
from collections.abc import Iterator

import pytest

from services.cpu_manager.environments.agent.events import Events


@pytest.fixture
def events() -> Iterator[Events]:
    numbers = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    wakeup = signal.set_wakeup_fd(-1)
    try:
        yield Events()
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def test_an_event_of_a_closed_descriptor_does_not_reach_its_successor(events: Events) -> None:
    pipes = [os.pipe(), os.pipe()]
    called: list[str] = []

    def replace(ended: int) -> None:
        """The other one ends in this turn, and something silent gets its number."""
        if not called:
            events.unwatch(ended)
            os.close(ended)
            silent, _ = os.pipe()
            assert silent == ended
            events.watch(silent, lambda: called.append("silent"))
        called.append("loud")

    (one, write_one), (other, write_other) = pipes
    events.watch(one, lambda: replace(other))
    events.watch(other, lambda: replace(one))
    for writer in (write_one, write_other):
        os.write(writer, b"x")

    events.turn()

    assert called == ["loud"]
