"""The benchmark of history writes."""

from __future__ import annotations

from shared.store.batches import BatchHistory
from shared.store.database import connect, transaction
from treadle.lab.bench.history_write import measure_history_write


async def test_the_history_benchmark_measures_and_leaves_nothing_behind(database_url: str) -> None:
    assert await measure_history_write(database_url, 3_000) > 0
    async with connect(database_url, name="test") as sessions, transaction(sessions) as session:
        assert await BatchHistory(session).prune(9e9) == 0
