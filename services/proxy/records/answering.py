"""Answers as callers read them. Each is composed once, as JSON; the same bytes are stored and sent."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from services.proxy.metrics import QUEUEING
from shared.api.requests import Act, Answer, StageReport
from shared.messages.actions import ActionSubmitted
from shared.policy.model.formulation import INFRASTRUCTURE_FAILURES, AnswerAction, StageAct
from shared.policy.model.results import EMPTY, AttemptResult, Usage, added
from shared.runtime.units import Seconds

_encoder = msgspec.json.Encoder()


def compose(
    submitted: ActionSubmitted,
    index: int,
    answer: AnswerAction,
    result: AttemptResult | None,
    arrived_s: Seconds,
    now: Seconds,
) -> bytes:
    """Return the JSON answer of one action.

    Args:
        submitted: the request.
        index: its place in its batch; -1 outside one.
        answer: the dispatcher's decision.
        result: of the attempt behind the decision; None if there is none.
        arrived_s: when the action entered the journal; Unix seconds, like `now`.
        now: time of this answer.
    """
    masked = is_masked(answer)
    shown = None if masked else result
    body = Answer(
        id=submitted.action,
        state="finished",
        request_id=submitted.request or None,
        task=submitted.task or None,
        batch=submitted.batch or None,
        trajectory=submitted.trajectory or submitted.for_trajectory or None,
        index=index if index >= 0 else None,
        arrived_at=arrived_s,
        ended=answer.ended,
        mask=masked,
        passed=shown.passed if shown else None,
        score=score_of(submitted, answer, shown),
        reason=answer.reason,
        retry_in_s=round(answer.retry_in_s, 3) if answer.retry_in_s else None,
        output=msgspec.Raw(result.output) if result and result.output != EMPTY else None,
        act=_act(answer, max(0.0, now - arrived_s)),
        stages=reports(answer.acts),
        usage=dict(usage_of(answer)),
        cpu_s=result.usage.get("cpu_s", 0.0) if result else 0.0,
        peak_memory_bytes=result.peak_memory_bytes if result else 0,
        evidence=(result.evidence or None) if result else None,
    )
    return _encoder.encode(body)


def is_masked(answer: AnswerAction) -> bool:
    """Return whether the answer makes no statement about the sample."""
    return answer.ended in INFRASTRUCTURE_FAILURES or answer.ended == "cancelled"


def usage_of(answer: AnswerAction) -> Usage:
    """Return the usage of all stages of an answered action."""
    if len(answer.acts) == 1 and not answer.usage:
        return answer.acts[0].usage
    total = answer.usage
    for act in answer.acts:
        total = added(total, act.usage)
    return total


def reports(acts: Iterable[StageAct]) -> list[StageReport]:
    """Return each stage's queueing and execution, as callers read it."""
    return [
        StageReport(
            name=act.name,
            queue_s=act.queue_s,
            execution_s=act.execution_s,
            node=act.node,
            attempts=act.attempts,
            units=act.units,
            usage=dict(act.usage),
            parked_s=act.parked_s,
            **_restored(act.restore_s),
        )
        for act in acts
    ]


def _act(answer: AnswerAction, total_s: Seconds) -> Act:
    """Overhead is the unclamped remainder. The total is the sum of its parts, exact to the last bit."""
    queue_s = sum(act.queue_s for act in answer.acts) + answer.queue_s
    execution_s = sum(act.execution_s for act in answer.acts) + answer.execution_s
    overhead_s = total_s - queue_s - execution_s
    return Act(
        queue_s=queue_s,
        execution_s=execution_s,
        overhead_s=overhead_s,
        total_s=queue_s + execution_s + overhead_s,
        **_restored(sum(act.restore_s for act in answer.acts) + answer.restore_s),
    )


def _restored(seconds: Seconds) -> dict[str, Seconds]:
    """Return the field `restore_s`. Without a wait there is none: msgspec would write a zero that is not the default
    itself.
    """
    return {"restore_s": seconds} if seconds else {}


def score_of(submitted: ActionSubmitted, answer: AnswerAction, result: AttemptResult | None) -> float | None:
    """Return the score of an answered action. `result`: None if it is masked."""
    if answer.ended != "timeout":
        return result.score if result else None
    met = answer.acts[-1].name if answer.acts else ""  # the stage that timed out
    own = next((stage.timeout_score for stage in submitted.stages if stage.name == met), None)
    return submitted.timeout_score if own is None else own


def observe_queueing(submitted: ActionSubmitted, answer: AnswerAction) -> None:
    """Observe queueing of every stage with a verdict, and of the stage in which the action ended."""
    queued = {act.name: act.queue_s for act in answer.acts}
    for stage in submitted.stages[: len(answer.acts) + 1]:
        if stage.name in queued or answer.queue_s:
            QUEUEING.observe(stage.pool, stage.name, queued.get(stage.name, answer.queue_s))
