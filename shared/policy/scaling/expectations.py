"""Expectations of all open batches with history at one moment: the input of SIMULATE, and each T that has changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

from shared.policy.scaling.open_batch import OpenBatchState
from shared.policy.scaling.pacing import LimitedStage, permitted
from shared.policy.scaling.quota_supply import Supply
from shared.policy.scaling.stimuli import Command, ExpectCompletion
from shared.policy.scaling.workload import ExpectedBatch


class Expectations(NamedTuple):
    """Result of `expect`."""

    commands: list[Command]
    """For each T that has changed."""
    batches: list[ExpectedBatch]
    """In the dispatcher's order."""
    limited: Sequence[LimitedStage]
    """Stages that quotas limit, whatever units there are."""


def expect(
    now: float, active: Sequence[OpenBatchState], random: Random, *, paced: bool, supply: Supply
) -> Expectations:
    """Collect the remaining work of those batches that have history, and update their T. Their clock begins now.

    Args:
        now: Unix seconds.
        active: open batches that need units.
        random: for draws from histories.
        paced: see `CollectionInput.paced`.
        supply: quotas now.
    """
    commands: list[Command] = []
    batches, known = [], [state for state in active if state.history is not None]
    for state in known:
        expected = state.pace(now, state.expected(now, random, paced=paced), supply)
        moved_s = state.move(now, expected)
        if moved_s is not None:
            commands.append(ExpectCompletion(state.batch.batch, moved_s))
        batches.append(expected if state.key_s is None else replace(expected, key_s=state.key_s - now))
    batches, limited = permitted(batches, supply)
    for state, expected in zip(known, batches, strict=True):
        state.allow(now, expected)
        state.limited = frozenset(one.stage.name for one in limited if one.batch == expected.batch)
    return Expectations(commands, batches, limited)
