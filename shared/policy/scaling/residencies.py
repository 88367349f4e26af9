"""Model services of batches whose first request is expected: they are restored before it arrives."""

from __future__ import annotations

from collections.abc import Iterable

from shared.policy.scaling.open_batch import OpenBatchState
from shared.policy.scaling.stimuli import WantResidency


def residencies_wanted(active: Iterable[OpenBatchState]) -> list[WantResidency]:
    """Return one command for each service and degree of a batch, in the order of its stages.

    `active`: open batches that need units now or soon. Those whose requests arrive restore their services by these.
    """
    return [
        WantResidency(pool, service, degree, state.batch.batch)
        for state in active
        if state.batch.first_arrival_at is None
        for pool, service, degree in dict.fromkeys(
            (stage.drawn_from, stage.service, stage.units) for stage in state.batch.stages if stage.service
        )
    ]
