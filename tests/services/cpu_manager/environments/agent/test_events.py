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


def test_what_happened_to_a_descriptor_is_not_told_to_the_next_of_its_number(events: Events) -> None:
    pipes = [os.pipe(), os.pipe()]
    told: list[str] = []

    def replace(ended: int) -> None:
        """The other one ends in this turn, and something silent gets its number."""
        if not told:
            events.unwatch(ended)
            os.close(ended)
            silent, _ = os.pipe()
            assert silent == ended
            events.watch(silent, lambda: told.append("silent"))
        told.append("loud")

    (one, write_one), (other, write_other) = pipes
    events.watch(one, lambda: replace(other))
    events.watch(other, lambda: replace(one))
    for writer in (write_one, write_other):
        os.write(writer, b"x")

    events.turn()

    assert told == ["loud"]
