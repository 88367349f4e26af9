"""One batch graded from start to end, with a fault in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.e2e.samples import WORKFLOW, check_answers, mixed
from tests.e2e.trainer import Trainer

Disturb = Callable[[], Coroutine[Any, Any, None]]


CLOCKS_S = 0.005
"""Difference between the times that two processes measure by Valkey's clock, at most."""


def check_times(answers: list[dict[str, Any]]) -> None:
    """Check that the times of every answer add up, also after the loss of a process that measured them."""
    for answer in answers:
        act = answer["act"]
        assert act["queue_s"] + act["execution_s"] + act["overhead_s"] == act["total_s"], answer
        assert min(act["queue_s"], act["execution_s"]) >= 0, answer
        assert act["overhead_s"] > -CLOCKS_S, answer


async def grade_through(trainer: Trainer, disturb: Disturb, *, size: int, key: str) -> list[dict[str, Any]]:
    """Grade `size` samples; an eighth of the answers in, `disturb`, while the second half is being sent.

    Holds that every sample is answered once and right, that a second reader gets what the first one got, and that
    sending everything again changes nothing. Returns the answers.
    """
    samples = mixed(size)
    await trainer.declare("campaign", WORKFLOW)
    batch = await trainer.open("campaign", key, size)
    assert await trainer.open("campaign", key, size) == batch
    begun = asyncio.Event()
    received = 0

    def count(_: dict[str, Any]) -> None:
        nonlocal received
        received += 1
        if received >= size // 8:
            begun.set()

    async with asyncio.TaskGroup() as group:
        following = group.create_task(trainer.follow(batch, count))
        await trainer.send(batch, samples[: size // 2])
        await begun.wait()
        group.create_task(disturb())
        await trainer.send(batch, samples[size // 2 :])
    answers = following.result()
    check_answers(samples, answers)
    check_times(answers)
    assert await trainer.follow(batch) == answers
    assert await trainer.send(batch, samples) == size
    view = await trainer.view(batch)
    assert (view["state"], view["submitted"], view["answered"]) == ("complete", size, size)
    return answers
