"""Random histories of the journal against a naive model: nothing accepted is lost, nothing is answered twice."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, ClassVar

import redis as blocking
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shared.bus import functions
from shared.bus.connection import client
from shared.bus.functions import Answering
from shared.messages.outcomes import ANSWERED, Answered
from tests.shared.bus.journal import KEEP_ACTION_S, Journal, submission

BATCHES = {"": 0, "b2": 2, "b3": 3, "open": 0}
"""Batch -> size; "" is outside any, 0 is unknown."""
ROOM = 6


@dataclass
class Batch:
    size: int
    state: str = "open"
    submitted: int = 0
    answered: int = 0
    ended: bool = False

    def settle(self) -> None:
        if self.ended:
            return
        over = 0 < self.size <= self.answered if self.state == "open" else self.answered >= self.submitted
        if over:
            self.ended = True
            self.state = "complete" if self.state in ("open", "sealed") else self.state


@dataclass
class Model:
    """Expected state of the store."""

    batches: dict[str, Batch] = field(default_factory=dict)
    bodies: dict[str, bytes] = field(default_factory=dict)
    batch_of: dict[str, str] = field(default_factory=dict)
    unanswered: list[str] = field(default_factory=list)
    answers: dict[str, bytes] = field(default_factory=dict)
    asked: int = 0
    """Batches with a cancellation in the journal."""

    def submit(self, action: str, batch: str, body: bytes) -> str:
        if action in self.bodies:
            return "repeated" if self.bodies[action] == body else "conflict"
        if len(self.unanswered) + self.asked >= ROOM:
            return "journal-full"
        if batch:
            expected = self.batches[batch]
            if expected.state != "open":
                return "batch-closed"
            if 0 < expected.size <= expected.submitted:
                return "batch-full"
            expected.submitted += 1
        self.bodies[action], self.batch_of[action] = body, batch
        self.unanswered.append(action)
        return "accepted"

    def finish(self, action: str, answer: bytes) -> bool:
        if action not in self.unanswered:
            return False
        self.unanswered.remove(action)
        self.answers[action] = answer
        if batch := self.batch_of[action]:
            self.batches[batch].answered += 1
        return True

    def end(self, batch: str, state: str) -> str:
        expected = self.batches[batch]
        if not expected.ended and expected.state not in ("cancelled", "abandoned", state):
            expected.state = state
            self.asked += state != "sealed"
            expected.settle()
        return expected.state


class JournalMachine(RuleBasedStateMachine):
    """Drives the real functions and the model side by side."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.Runner()
        self._redis = client(self.url, name="machine")
        with blocking.Redis.from_url(self.url) as redis:
            redis.flushall()
        self.model = Model()
        self.entries: dict[str, str] = {}

    def teardown(self) -> None:
        self._loop.run(self._redis.aclose())
        self._loop.close()

    def run(self, coroutine: Any) -> Any:
        return self._loop.run(coroutine)

    @initialize()
    def opens_the_batches(self) -> None:
        async def opened() -> Journal:
            await functions.load(self._redis)
            journal = await Journal.led(self._redis)
            for batch, size in BATCHES.items():
                if batch:
                    await journal.open(batch, size=size)
            return journal

        self.journal: Journal = self.run(opened())
        self.model.batches = {batch: Batch(size) for batch, size in BATCHES.items() if batch}

    @rule(
        numbers=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(sorted(BATCHES))), min_size=1, max_size=4),
        body=st.sampled_from([b"one", b"one", b"two"]),
    )
    def submits(self, numbers: list[tuple[int, str]], body: bytes) -> None:
        names = [(f"{batch}-{number}", batch) for number, batch in numbers]
        items = [submission(action, batch=batch, body=body) for action, batch in names]
        receipts = self.run(functions.journal_actions(self._redis, items, max_journal=ROOM))
        for (action, batch), receipt in zip(names, receipts, strict=True):
            assert receipt.code == self.model.submit(action, batch, body)
            if receipt.code == "accepted":
                self.entries[action] = receipt.entry
            elif receipt.code == "repeated":
                assert receipt.entry == self.entries[action]

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), answer=st.binary(min_size=1, max_size=3))
    def finishes(self, data: st.DataObject, answer: bytes) -> None:
        actions = data.draw(st.lists(st.sampled_from(sorted(self.entries)), min_size=1, max_size=4))
        answers = [
            Answering(action, self.entries[action], self.model.batch_of[action], answer, KEEP_ACTION_S)
            for action in actions
        ]
        assert self.run(self.journal.finish_all(*answers)) == [self.model.finish(action, answer) for action in actions]
        for batch in {self.model.batch_of[action] for action in actions} - {""}:
            self.model.batches[batch].settle()

    @rule(
        batch=st.sampled_from(sorted(set(BATCHES) - {""})), state=st.sampled_from(["sealed", "cancelled", "abandoned"])
    )
    def ends_a_batch(self, batch: str, state: str) -> None:
        assert self.run(self.journal.end(batch, state)) == self.model.end(batch, state)

    @invariant()
    def journal_and_answers_are_what_was_accepted(self) -> None:
        async def look() -> None:
            model, journal = self.model, self.journal
            assert await journal.unanswered() == model.unanswered
            assert len(await journal.cancels()) == model.asked
            for action, batch in model.batch_of.items():
                fields = await journal.fields(f"action:{action}")
                if not batch:
                    assert fields.get("answer") == model.answers.get(action)
                assert ("result" in fields) == (bool(batch) and action in model.answers)
            for batch, expected in model.batches.items():
                assert await journal.counts(batch) == (expected.state, expected.submitted, expected.answered)
                mine = [answer for action, answer in model.answers.items() if model.batch_of[action] == batch]
                assert sorted(await journal.results(batch)) == sorted(mine)

        self.run(look())

    @invariant()
    def every_answer_and_every_end_was_published_once(self) -> None:
        async def look() -> None:
            published = [one for one in await self.journal.messages(ANSWERED) if isinstance(one, Answered)]
            completed = [action for one in published for action in one.actions]
            assert sorted(completed) == sorted(self.model.answers)
            ended = [one.batch for one in await self.journal.ended()]
            assert sorted(ended) == sorted(batch for batch, expected in self.model.batches.items() if expected.ended)

        self.run(look())


def test_no_history_loses_or_doubles_an_answer(redis_url: str) -> None:
    class ConnectedMachine(JournalMachine):
        url = redis_url

    run_state_machine_as_test(
        ConnectedMachine, settings=settings(max_examples=40, stateful_step_count=20, deadline=None)
    )
