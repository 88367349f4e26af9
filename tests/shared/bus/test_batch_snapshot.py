"""Snapshots of open batches, published by the leader and read by the planner."""

from __future__ import annotations

import sys
from array import array

import numpy as np
import pytest
from redis.asyncio import Redis

from shared.bus import backlog, batches
from shared.bus.batch_snapshot import read_counts, read_snapshot
from shared.bus.connection import command
from shared.bus.functions import Answering
from shared.messages.batch_snapshot import OpenBatchesSnapshot, UnansweredRequests, decode, encode, pack
from shared.policy.dispatch.backlog import Backlog
from tests.shared.bus.journal import KEEP_ACTION_S, Journal

SEEN = OpenBatchesSnapshot(
    7.0, {"b": UnansweredRequests([pack(array("d", [1.5, 2.5])), b""], [b"", pack(array("d", [0.5, 0.75, 3.0]))])}
)


def test_times_are_read_as_numpy_reads_them() -> None:
    assert np.frombuffer(SEEN.batches["b"].queuing[0], "<f8").tolist() == [1.5, 2.5]
    assert np.frombuffer(SEEN.batches["b"].running[1], "<f8").reshape(-1, 3).tolist() == [[0.5, 0.75, 3.0]]
    assert decode(encode(SEEN)) == SEEN


def test_times_are_little_endian_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    times = array("d", [1.5])
    there = "big" if sys.byteorder == "little" else "little"
    monkeypatch.setattr(sys, "byteorder", there)
    assert pack(times)[:: 1 if there == "little" else -1] == array("d", [1.5]).tobytes()
    assert times == array("d", [1.5])


async def test_no_snapshot_is_read_before_a_leader_published_one(valkey: Redis) -> None:
    assert await read_snapshot(valkey) is None


@pytest.mark.parametrize("raw", [b"\xc1", b"\x82\xa2at\xa2\xff\xff", b"\x91" * 5_000])
async def test_a_snapshot_that_cannot_be_decoded_is_none(valkey: Redis, raw: bytes) -> None:
    await command(valkey, "HSET", "backlog", "batches", raw)
    assert await read_snapshot(valkey) is None


async def test_a_batch_snapshot_is_valid_until_the_next_one(journal: Journal) -> None:
    await backlog.publish_backlog(journal.redis, journal.epoch, Backlog(), SEEN)
    await backlog.publish_backlog(journal.redis, journal.epoch, Backlog(stuck={"b": 1}))
    assert await read_snapshot(journal.redis) == SEEN
    await backlog.publish_backlog(journal.redis, journal.epoch, Backlog(), OpenBatchesSnapshot(8.0, {}))
    assert await read_snapshot(journal.redis) == OpenBatchesSnapshot(8.0, {})


async def test_counts_are_of_each_batch_in_the_order_asked_for(journal: Journal) -> None:
    await journal.open("a")
    await journal.open("b")
    entry = await journal.entry("r1", "b")
    await journal.submit("r2", batch="b")
    await journal.finish("r1", entry, "b")
    assert await read_counts(journal.redis, ["b", "unknown", "a"]) == [
        (2, 1, False, None),
        None,
        (0, 0, False, None),
    ]
    await batches.end_batch(journal.redis, "b", "sealed", keep_batch_s=60)
    assert await read_counts(journal.redis, ["b"]) == [(2, 1, True, None)]
    assert await read_counts(journal.redis, []) == []


async def test_the_end_without_queueing_is_the_latest_of_the_answered(journal: Journal) -> None:
    await journal.open("b")
    entries = {name: await journal.entry(name, "b") for name in ("r1", "r2", "r3")}
    for name, ends_s in (("r1", 5.0), ("r2", 9.5), ("r3", 7.0)):
        await journal.finish_all(
            Answering(name, entries[name], "b", b"{}", KEEP_ACTION_S, unqueued_end_ms=round(1000 * ends_s))
        )
    (counts,) = await read_counts(journal.redis, ["b"])
    assert counts is not None
    assert counts.unqueued_end_s == 9.5
