"""A peer runs a round on command, and ends with all processes that it started."""

import sys
from pathlib import Path

import psutil
import pytest

from treadle.lab.bench.figures import BenchError
from treadle.lab.bench.peers.process import running_peer, running_peers


async def test_a_peer_plays_rounds_until_its_input_ends() -> None:
    async with running_peer(Path(sys.executable), "idle", {}) as peer:
        result = await peer.round(callers=2, seconds=0.05)
        batch = await peer.batch(1000)
        process = psutil.Process(peer.pid)
    assert result.calls >= 2
    assert (batch.calls, batch.p50_s, batch.p99_s) == (1000, batch.elapsed_s, batch.elapsed_s)
    assert not process.is_running()


async def test_a_peer_that_ends_early_is_reported() -> None:
    with pytest.raises(BenchError, match="absent ended"):
        async with running_peer(Path(sys.executable), "absent", {}):
            pass


async def test_peers_that_cannot_start_are_left_out_with_the_reason() -> None:
    messages: list[str] = []
    async with running_peers(Path(sys.executable), "unix:///nowhere", messages.append) as (peers, skipped):
        assert peers == {}
    names = ["dramatiq", "litellm", "ray", "sglang_router", "throttled", "vllm_router"]
    assert [one.name for one in skipped] == names
    assert messages == [f"starting {name}" for name in names]
