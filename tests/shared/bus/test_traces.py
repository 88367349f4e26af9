"""Traces in Valkey: the first answer of an action counts, and only the trajectory's own tenant adds to it."""

from __future__ import annotations

import pytest

from shared.bus.connection import command
from shared.bus.functions import Answering, Deposed
from shared.bus.traces import MOST_TRACED, TracedAction, TracedStage, encode_action, read_trace, trace_actions
from shared.bus.trajectories import close_trajectory
from shared.runtime.errors import Overloaded
from tests.shared.bus.journal import Journal, lead, resign
from tests.shared.bus.test_trajectory_functions import KEEP_S, opened

ACTION = TracedAction(
    name="env.bash",
    arrived_s=1_700_000_000.25,
    total_s=3.5,
    queue_s=1.0,
    execution_s=2.0,
    ended="ok",
    reason="",
    passed=True,
    score=0.5,
    request="r1",
    batch="b1",
    stages=(TracedStage("env.bash", "n1", 2, 1, 1.0, 2.0, 0.25),),
    in_environment=True,
)
OTHER = encode_action("another")


def answering(action: str, *, tenant: str = "ada", trajectory: str = "t1", span: bytes = b"") -> Answering:
    span = span or encode_action(ACTION)
    return Answering(action, "1-0", "", b"{}", 60, tenant, traced_by=trajectory, span=span)


async def traced(journal: Journal, *answers: Answering) -> None:
    await trace_actions(journal.redis, journal.epoch, answers)


async def test_an_action_is_read_as_it_was_written_and_its_first_answer_counts(journal: Journal) -> None:
    await opened(journal)
    await opened(journal, "t2")
    await traced(journal, answering("a1"), answering("b1", trajectory="t2"), answering("a2"))
    await traced(journal, answering("a1", span=OTHER))
    assert await read_trace(journal.redis, "t1") == {"a1": ACTION, "a2": ACTION}
    assert await read_trace(journal.redis, "t2") == {"b1": ACTION}


async def test_nothing_is_added_for_another_tenant_or_without_a_record(journal: Journal) -> None:
    await opened(journal)
    await traced(journal, answering("a1", tenant="bob"), answering("a2", trajectory="t2"), answering("a3", tenant=""))
    assert await read_trace(journal.redis, "t1") == await read_trace(journal.redis, "t2") == {}
    assert await command(journal.redis, "EXISTS", "trace:t1", "trace:t2") == 0


async def test_a_trace_is_bounded_and_has_room_for_the_grading(journal: Journal) -> None:
    await opened(journal)
    most = MOST_TRACED + 100
    for start in range(0, most, 100):
        acted = (answering(f"a{number}")._replace(trajectory="t1") for number in range(start, start + 100))
        await traced(journal, *acted)
    acted_ids = {f"a{number}" for number in range(MOST_TRACED)}
    assert set(await read_trace(journal.redis, "t1")) == acted_ids
    await traced(journal, *(answering(f"g{number}") for number in range(100)))
    assert set(await read_trace(journal.redis, "t1")) == acted_ids | {f"g{number}" for number in range(64)}


async def test_a_trace_expires_with_the_record(journal: Journal) -> None:
    await opened(journal)
    await traced(journal, answering("a1"))
    assert (
        KEEP_S < await command(journal.redis, "TTL", "trajectory:t1") <= await command(journal.redis, "TTL", "trace:t1")
    )
    await command(journal.redis, "EXPIRE", "trace:t1", 5)  # as of one that has waited for its end
    await close_trajectory(journal.redis, "t1", "done")
    for _ in range(2):
        assert KEEP_S - 5 < await command(journal.redis, "TTL", "trace:t1") <= KEEP_S
        await traced(journal, answering("graded"))


async def test_a_full_valkey_takes_no_span(journal: Journal) -> None:
    await opened(journal)
    await command(journal.redis, "CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(Overloaded):
            await traced(journal, answering("a1"))
    finally:
        await command(journal.redis, "CONFIG", "SET", "maxmemory", "0")
    assert await read_trace(journal.redis, "t1") == {}


async def test_a_deposed_leader_adds_nothing(journal: Journal) -> None:
    await opened(journal)
    await resign(journal.redis, "me")
    await lead(journal.redis, "successor", 30.0)
    with pytest.raises(Deposed):
        await traced(journal, answering("a1"))
    assert await read_trace(journal.redis, "t1") == {}
