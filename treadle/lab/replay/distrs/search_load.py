"""Batches for measuring the search time by number of requests (DistRS §6.4, Figure 15)."""

from __future__ import annotations

import numpy as np

from shared.policy.scaling.workload import BatchRecord, ExpectedBatch, repeating
from treadle.lab.replay.distrs.generate import TASKS, WINDOW_S, generate


def search_load(
    requests: int, batches: int = TASKS, *, chance: np.random.Generator
) -> tuple[list[ExpectedBatch], dict[str, int]]:
    """Return open batches that overlap in time, before their first arrivals, and ceilings with which nothing queues.

    Each is another iteration of the generated workload (`generate`), from the first of the training to the last, and
    starts within the same window as its tasks. Equal seeds give equal batches.

    Args:
        requests: of all batches together; the sizes of batches differ by one at most.
        batches: number of open batches.
        chance: random generator of the workload.

    Returns:
        Arguments of `shared.policy.scaling.search.search`: the batches, and by pool as many units as requests.

    Raises:
        ValueError: there are fewer requests than batches.
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
