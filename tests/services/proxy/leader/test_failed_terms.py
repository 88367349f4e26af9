"""Terms of leaders that fail because of one action: the log is written, and the action ends no later term."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from services.proxy.leader import leadership
from services.proxy.leader.dispatching import MOST_FAILED, DispatchFailed
from services.proxy.leader.leadership import Leadership
from services.proxy.records.waiters import Waiters
from services.proxy.settings import ProxySettings
from shared.bus import functions
from shared.bus.connection import command
from shared.bus.functions import Submission
from shared.bus.suspects import read_failed_terms
from shared.messages.actions import ACTIONS, ActionSubmitted
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import RequestsSubmitted, Stimulus, TickPassed
from shared.policy.model.formulation import Command
from shared.runtime.background import Background
from tests.services.proxy.in_process import SimulatedNode
from tests.services.proxy.mesh import stage, submitted
from tests.services.proxy.stores import store_over
from tests.shared.bus.soon import soon
from treadle.lab.evaluations.dispatch_decisions import compare_dispatch

pytestmark = pytest.mark.usefixtures("captured_logs")

real_handle = Dispatcher.handle


def fail_with(monkeypatch: pytest.MonkeyPatch, kind: type[Stimulus]) -> None:
    """Let the dispatcher raise at each such stimulus, if it is of the action `poison` or of none."""

    def broken(self: Dispatcher, now: float, *given: Stimulus) -> list[Command]:
        for one in given:
            if isinstance(one, kind):
                requests = one.requests if isinstance(one, RequestsSubmitted) else None
                named = {request.id for request in requests} if requests is not None else {"poison"}
                assert "poison" not in named, "units of poison"
        return real_handle(self, now, *given)

    monkeypatch.setattr(Dispatcher, "handle", broken)


class Candidate:
    """A replica's leadership, and whether its loop has crashed."""

    def __init__(self, redis: Redis, reader: Redis, home: Path) -> None:
        self.crashed = False
        self.waiters = Waiters(store_over(redis).answers)
        self._redis, self._reader = redis, reader
        self._settings = ProxySettings.model_validate({"lease_s": 1.0, "treadle": {"home": str(home)}})
        self.leadership: Leadership

    def _crash(self) -> None:
        self.crashed = True

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Candidate]:
        async with Background(self._crash) as background:
            self.leadership = Leadership(self._redis, self._reader, self.waiters, self._settings, background)
            background.start(self.leadership.run(), name="leadership")
            yield self
            await self.leadership.stop()


async def journal_of(redis: Redis, *actions: ActionSubmitted) -> None:
    items = [Submission(one.action, b"", one.batch, ACTIONS.encode(one), one.trajectory) for one in actions]
    await functions.journal_actions(redis, items, max_journal=100)


async def answer_of(redis: Redis, action: str) -> dict[str, Any] | None:
    raw = await command(redis, "HGET", f"action:{action}", "answer")
    return None if raw is None else msgspec.json.decode(raw)


@pytest.fixture
def candidate(valkey: Redis, reader: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Candidate:
    monkeypatch.setattr(leadership, "FAILED_PAUSE_S", 0.01)
    return Candidate(valkey, reader, tmp_path)


async def test_an_action_that_fails_every_term_is_refused_and_the_others_are_answered(
    candidate: Candidate, valkey: Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, RequestsSubmitted)
    await journal_of(valkey, *(submitted(name, stage(kind="noop")) for name in ("a", "poison", "b")))
    async with SimulatedNode.up(redis_url, lambda *_: {}), candidate.running():

        async def all_answered() -> bool:
            return None not in [await answer_of(valkey, name) for name in ("a", "poison", "b")]

        await soon(all_answered)
        assert candidate.leadership.epoch == await current_epoch(valkey) == MOST_FAILED + 1
        assert not candidate.crashed
    answers = {name: await answer_of(valkey, name) for name in ("a", "poison", "b")}
    assert {name: answer and answer["ended"] for name, answer in answers.items()} == {
        "a": "ok", "poison": "refused", "b": "ok",
    }  # fmt: skip
    poison = answers["poison"]
    assert poison is not None
    assert poison["mask"] is True
    assert poison.get("score") is None
    assert "the dispatcher has failed 3 times" in poison["reason"]
    assert await read_failed_terms(valkey) == {"a": 1, "poison": MOST_FAILED, "b": 1}


async def current_epoch(valkey: Redis) -> int:
    return int(await command(valkey, "GET", "epoch:dispatcher"))


async def test_each_failed_term_leaves_a_log_that_raises_the_same_error_at_the_same_call(
    candidate: Candidate, valkey: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default: `PROXY_STIMULUS_LOGS` is not set."""
    fail_with(monkeypatch, RequestsSubmitted)
    await journal_of(valkey, submitted("a"), submitted("poison"))
    async with candidate.running():

        async def leads() -> bool:
            return candidate.leadership.epoch > 0

        await soon(leads)
    paths = sorted((tmp_path / "log").glob("failed-dispatch-*.log"))
    assert len(paths) >= 2
    for path in paths:
        made = compare_dispatch(path)
        assert made.same
        assert made.raised.startswith("AssertionError: units of poison")
        assert made.stimuli["RequestsSubmitted"] >= 1
        assert list(made.stimuli)[-1] == "RequestsSubmitted"


async def test_a_failure_that_names_no_action_ends_the_process(
    candidate: Candidate, valkey: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later term could leave anything out; the supervisor's pauses bound the rate."""
    fail_with(monkeypatch, TickPassed)
    async with candidate.running():

        async def has_crashed() -> bool:
            return candidate.crashed

        await soon(has_crashed)
    assert await current_epoch(valkey) == 1
    assert len(list((tmp_path / "log").glob("failed-dispatch-*.log"))) == 1
    assert await read_failed_terms(valkey) == {}


async def test_a_failure_that_cannot_be_counted_ends_the_process(
    candidate: Candidate, valkey: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, RequestsSubmitted)
    await command(valkey, "SET", "suspects", "no hash")
    monkeypatch.setattr(leadership, "read_failed_terms", _none_failed)
    await journal_of(valkey, submitted("poison"))
    async with candidate.running():

        async def has_crashed() -> bool:
            return candidate.crashed

        await soon(has_crashed)


async def _none_failed(_: Redis) -> dict[str, int]:
    return {}


def test_the_error_counts_the_actions() -> None:
    assert str(DispatchFailed(("a", "b"))) == "a call of the dispatcher has failed; it named 2 actions"
