"""A load to measure the search on: how long it takes against the number of requests (DistRS §6.4, Figure 15)."""

from __future__ import annotations

import numpy as np

from shared.policy.scaling.workload import BatchRecord, ExpectedBatch, repeating
from treadle.lab.replay.distrs.generate import TASKS, WINDOW_S, generate


def search_load(
    requests: int, batches: int = TASKS, *, chance: np.random.Generator
) -> tuple[list[ExpectedBatch], dict[str, int]]:
    """Open batches that overlap in time, of which nothing has come yet, and ceilings that leave no request waiting.

    Each is another iteration of the generated workload (`generate`), from the training's first to its last, and begins
    within the same window as its tasks do. Equally seeded chances give the same load.

    Args:
        requests: of all batches together, which differ by one at most.
        batches: how many are open at once.
        chance: where the workload comes from.

    Returns:
        What `shared.policy.scaling.search.search` takes: the batches, and by pool as many units as there are requests.

    Raises:
        ValueError: there is not a request for each batch.
    """
    if not 1 <= batches <= requests:
        raise ValueError(f"{batches} batches need a request each, not {requests} together")
    size = -(-requests // batches)
    trace = generate(chance, architecture="colocated", tasks=1, iterations=batches, size=size)
    starts = np.sort(chance.uniform(0.0, WINDOW_S, batches))
    load = []
    for number, (batch, start) in enumerate(zip(trace.tasks[0].batches, starts, strict=True)):
        kept = slice(int(number >= requests - batches * (size - 1)), None)  # the first to arrive is left out where
        arrivals = batch.arrivals_s[kept]  # the requests cannot be divided
        record = BatchRecord(
            tuple((arrivals - arrivals[0]).tolist()), tuple(map(tuple, batch.executions_s[:, kept].tolist()))
        )
        first = float(start + arrivals[0])
        load.append(repeating(f"task-{number}", trace.stages, record, trace.max_extra_delay_s, first))
    return load, {stage.drawn_from: requests for stage in trace.stages}
