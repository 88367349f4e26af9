"""Pacing: the time for which quotas alone hold requests, whatever units there are.

With unlimited units a batch still waits for its quotas. This time belongs to T, because no units shorten it. The time
for which earlier batches keep a shared quota belongs to the delay of the later batch, as queueing for units does, and
it is permitted, because no units shorten that either. Requests whose quotas never give what they need are not planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shared.policy.scaling.list_scheduling import TOLERANCE_S, Flags
from shared.policy.scaling.quota_supply import Supply
from shared.policy.scaling.simulation_input import SimulationInput, UnlimitedUnits
from shared.policy.scaling.workload import ExpectedBatch, Stage


@dataclass(frozen=True, slots=True)
class LimitedStage:
    """Stage of a batch for which requests wait, whatever units there are."""

    batch: str
    stage: Stage
    limit: str
    """Limit that the most of them wait for: `the quota 'search' (10/s)`."""
    never: int = 0
    """Number of requests that it never lets start, as it is now."""

    @property
    def text(self) -> str:
        """Part of a reason."""
        if self.never:
            requests = f"{self.never:,} request{'' if self.never == 1 else 's'}"
            return f"{self.limit} holds back {requests} at stage {self.stage.name}"
        return f"{self.limit} limits stage {self.stage.name}"


def takes(stages: Sequence[Stage], supply: Supply) -> bool:
    """Return whether a stage takes from a limited quota."""
    return bool(supply) and any(supply.get(name) for stage in stages for name in stage.quotas)


def paced(batch: ExpectedBatch, supply: Supply, before_s: float | None) -> tuple[ExpectedBatch, float | None]:
    """Return a batch with the T that its quotas permit, and this T; None if quotas do not delay it.

    T becomes later only while the quotas lack what the first waiting request needs. If units are short instead, the
    quotas refill meanwhile, and the time that is lost so is delay.

    Args:
        batch: with T as if there were no quotas.
        supply: quotas at the beginning of the batch's clock.
        before_s: what the last call returned, on this clock.

    Costs one simulation if a stage takes from a quota.
    """
    if not takes(batch.stages, supply) or not batch.requests.size:
        return batch, before_s
    inputs = SimulationInput((batch,), 0.0, supply)
    unlimited = inputs.unlimited
    if unlimited is None:
        return batch, before_s
    ends = unlimited.starts_s + inputs.visits["lasts_s"]
    known = np.isfinite(ends)
    if not known.any() or (before_s is None and not (unlimited.lacked[known] >= 0).any()):
        return batch, before_s
    end_s = float(ends[known].max())
    if before_s is None or end_s < before_s or _lack_now(inputs, unlimited):
        before_s = end_s
    completion_s = max(batch.completion_s, before_s)
    permitted_s = max(batch.declared_s, batch.requests.soonest_s - completion_s)
    return replace(batch, completion_s=completion_s, max_extra_delay_s=permitted_s), before_s


def _lack_now(inputs: SimulationInput, unlimited: UnlimitedUnits) -> bool:
    """Return whether requests wait for quotas, and none of them can be granted now."""
    waiting = unlimited.claims.claiming & (inputs.earliest_s <= TOLERANCE_S)
    waiting[inputs.complete.under_way] = False
    starts = unlimited.starts_s[waiting]
    return len(starts) > 0 and not bool((starts <= TOLERANCE_S).any())


def permitted(batches: Sequence[ExpectedBatch], supply: Supply) -> tuple[list[ExpectedBatch], list[LimitedStage]]:
    """Return the batches without what their quotas never give, each permitted the delay that quotas cause because all
    batches take from them; and the stages that quotas limit.

    Costs one simulation if a stage takes from a quota.
    """
    limiting = [one for one in batches if takes(one.stages, supply)]
    inputs = SimulationInput(batches, 0.0, supply) if limiting else None
    if inputs is None or inputs.unlimited is None:
        return list(batches), []
    ends = inputs.unlimited.starts_s + inputs.visits["lasts_s"]
    found = list(batches)
    for number, batch in enumerate(batches):
        mine = inputs.visits["owner"] == number
        known = mine & np.isfinite(ends)
        late_s = float(ends[known].max(initial=0.0)) - batch.completion_s if known.any() else 0.0
        if late_s > batch.max_extra_delay_s + TOLERANCE_S:
            batch = replace(batch, max_extra_delay_s=late_s, declared_delay_s=batch.declared_s)
        found[number] = _without(batch, inputs, mine & ~known)
    return found, _limited_stages(inputs, inputs.unlimited)


def _without(batch: ExpectedBatch, inputs: SimulationInput, never: Flags) -> ExpectedBatch:
    """Return a batch without some visits; they are the last of their requests."""
    if not never.any():
        return batch
    rows = batch.requests.executions_s.copy()
    rows[inputs.stage[never], inputs.request[never]] = np.nan
    return replace(batch, requests=replace(batch.requests, executions_s=rows))


def _limited_stages(inputs: SimulationInput, unlimited: UnlimitedUnits) -> list[LimitedStage]:
    lacked, never = unlimited.lacked, np.isinf(unlimited.starts_s)
    found = []
    for number, batch in enumerate(inputs.batches):
        for place, stage in enumerate(batch.stages):
            waited = (inputs.visits["owner"] == number) & (inputs.stage == place) & (lacked >= 0)
            for group, is_never in ((waited & ~never, False), (waited & never, True)):
                if group.any():
                    most = int(np.bincount(lacked[group]).argmax())
                    count = int(np.count_nonzero(group)) if is_never else 0
                    found.append(LimitedStage(batch.batch, stage, unlimited.claims.limit_text(most), count))
    return found
