"""Measures how fast batch histories are written, for `treadle bench`."""

from __future__ import annotations

import random
import statistics
from time import perf_counter
from uuid import uuid4

from shared.store.batches import BatchHistory
from shared.store.database import connect, transaction
from shared.store.records import BatchRequests, EndedBatch

BATCH = 2_048


async def measure_history_write(url: str, rows: int) -> float:
    """Return the requests per second at which batches of 2,048 requests and two stages are stored, each committed.

    Args:
        url: of a migrated database; what is written there is deleted again.
        rows: requests to write, rounded up to whole batches.

    It is the median over the batches without the first one, which opens the connection.
    """
    rng = random.Random(7)
    task = f"bench-{uuid4().hex}"
    requests = _requests(rng)
    took: list[float] = []
    async with connect(url, name="bench", connections=1) as sessions:
        try:
            for number in range(1 + -(-rows // BATCH)):
                ended = EndedBatch(
                    f"{task}-{number}", "bench", task, "complete", 0.0, 0.0, float(number), BATCH, requests=requests
                )
                started = perf_counter()
                async with transaction(sessions) as session:
                    await BatchHistory(session).ended(ended)
                took.append(perf_counter() - started)
        finally:
            async with transaction(sessions) as session:
                await BatchHistory(session).delete("bench", task)
    return BATCH / statistics.median(took[1:])


def _requests(rng: random.Random) -> BatchRequests:
    def column(most_s: float) -> tuple[float, ...]:
        return tuple(rng.random() * most_s for _ in range(BATCH))

    return BatchRequests(
        arrival_s=column(200.0),
        queue_s=(column(1.0), column(1.0)),
        execution_s=(column(10.0), column(5.0)),
        units=((1,) * BATCH, (1,) * BATCH),
        overhead_s=column(0.01),
    )
