"""Messages of the planner's decisions."""

from __future__ import annotations

from services.scaling_planner.decisions import encoded
from shared.messages.targets import (
    COMPLETIONS,
    RESIDENCIES,
    TARGETS,
    CompletionExpected,
    ResidencyWanted,
    TargetSet,
)
from shared.policy.scaling.reasons import idle
from shared.policy.scaling.stimuli import Command, ExpectCompletion, PublishTarget, WantResidency


def test_each_stream_gets_its_decisions_and_others_nothing() -> None:
    reason = idle("review", 8, 0)
    commands: list[Command] = [
        WantResidency("gpus@default", "judge", 2, "b"),
        PublishTarget("gpus@default", None, 4, reason, 2),
        ExpectCompletion("b", 12.0),
    ]
    assert [(topic, [topic.decode(one) for one in payloads]) for topic, payloads in encoded(5.0, commands)] == [
        (COMPLETIONS, [CompletionExpected(batch="b", at=12.0)]),
        (TARGETS, [TargetSet(pool="gpus@default", units=4, decided_at=5.0, reason=reason.summary, chunk=2)]),
        (RESIDENCIES, [ResidencyWanted(pool="gpus@default", service="judge", degree=2, batch="b")]),
    ]
    assert list(encoded(5.0, [])) == []
