"""Messages of the planner's decisions, by stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shared.messages.base import Topic
from shared.messages.targets import (
    COMPLETIONS,
    RESIDENCIES,
    TARGETS,
    CompletionExpected,
    ResidencyWanted,
    TargetSet,
)
from shared.policy.scaling.stimuli import Command, ExpectCompletion, PublishTarget, WantResidency
from shared.runtime.units import Seconds


def encoded(now: Seconds, commands: Sequence[Command]) -> Iterator[tuple[Topic[Any], list[bytes]]]:
    """Yield the encoded messages of each stream that gets any, in the order of their publication."""
    completions, targets, residencies = list[bytes](), list[bytes](), list[bytes]()
    for command in commands:
        match command:
            case ExpectCompletion(batch, at):
                completions.append(COMPLETIONS.encode(CompletionExpected(batch=batch, at=at)))
            case PublishTarget() as one:
                message = TargetSet(
                    pool=one.pool, units=one.units, decided_at=now, reason=one.reason.summary, chunk=one.chunk
                )
                targets.append(TARGETS.encode(message))
            case WantResidency(pool, service, degree, batch):
                wanted = ResidencyWanted(pool=pool, service=service, degree=degree, batch=batch)
                residencies.append(RESIDENCIES.encode(wanted))
    for topic, payloads in ((COMPLETIONS, completions), (TARGETS, targets), (RESIDENCIES, residencies)):
        if payloads:
            yield topic, payloads
