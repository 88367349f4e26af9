"""Writes of answers: the dispatcher's decision with the data that only the leader has."""

from __future__ import annotations

from typing import Final

import msgspec

from services.proxy.leader.granted_leases import KEEP_S
from services.proxy.leader.unanswered import Unanswered
from services.proxy.metrics import ACT, ANSWERED_AS, USED
from services.proxy.records.answering import compose, is_masked, observe_queueing, score_of, usage_of
from services.proxy.records.failures import MOST_REASON
from shared.bus.functions import Answering
from shared.bus.traces import TracedAction, TracedStage, encode_action
from shared.messages.actions import ActionSubmitted
from shared.policy.model.formulation import AnswerAction
from shared.runtime.units import Seconds

_json = msgspec.json.Encoder()
MOST_SHOWN: Final = 160
"""Characters of a reason that a trace shows."""


def to_answering(kept: Unanswered, answer: AnswerAction, keep_s: int, now: Seconds) -> Answering:
    """Return the write of an answer, and count it. `keep_s`: retention outside batches."""
    submitted, arrived_s = kept.submitted, kept.arrived_s
    body = compose(submitted, kept.index, answer, kept.result, arrived_s, now)
    ANSWERED_AS[answer.ended].inc()
    ACT.observe(now - arrived_s)
    USED.add(usage := usage_of(answer))
    observe_queueing(submitted, answer)
    unqueued_s = sum(act.unqueued_s for act in answer.acts)
    unqueued_end_s = arrived_s + answer.execution_s + answer.parked_s + answer.restore_s + unqueued_s
    why = f"{answer.ended} {answer.reason[:MOST_REASON]}" if submitted.trajectory and is_masked(answer) else ""
    return Answering(
        answer.action,
        kept.entry,
        submitted.batch,
        body,
        keep_s,
        submitted.tenant,
        outcome=kept.outcome,
        unqueued_end_ms=round(1000 * unqueued_end_s),
        trajectory=submitted.trajectory,
        used=_json.encode(usage) if submitted.trajectory and usage else b"",
        settled=answer.settled,
        masked=why,
        traced_by=(traced_by := submitted.trajectory or submitted.for_trajectory),
        span=_span(kept, answer, arrived_s, now) if traced_by else b"",
    )


def _span(kept: Unanswered, answer: AnswerAction, arrived_s: Seconds, now: Seconds) -> bytes:
    """Return what the trace of its trajectory shows of an action."""
    submitted, result = kept.submitted, None if is_masked(answer) else kept.result
    return encode_action(
        TracedAction(
            name=submitted.stages[0].kind if len(submitted.stages) == 1 else submitted.task or "action",
            arrived_s=arrived_s,
            total_s=max(0.0, now - arrived_s),
            queue_s=answer.queue_s + sum(act.queue_s for act in answer.acts),
            execution_s=answer.execution_s + sum(act.execution_s for act in answer.acts),
            ended=answer.ended,
            reason=answer.reason[:MOST_SHOWN],
            passed=result.passed if result else None,
            score=score_of(submitted, answer, result),
            request=submitted.request,
            batch=submitted.batch,
            stages=_stages(submitted, answer),
            in_environment=bool(submitted.trajectory),
        )
    )


def _stages(submitted: ActionSubmitted, answer: AnswerAction) -> tuple[TracedStage, ...]:
    """Return the stages with a verdict, and the one in which the action ended without one."""
    stages = [
        TracedStage(
            act.name, act.node, act.units, act.attempts, act.queue_s, act.execution_s, act.parked_s, act.restore_s
        )
        for act in answer.acts
    ]
    last = len(stages)
    parts = answer.queue_s, answer.execution_s, answer.parked_s, answer.restore_s
    if last < len(submitted.stages) and any(parts):
        stages.append(TracedStage(submitted.stages[last].name, "", 0, 0, *parts))
    return tuple(stages)


def lease_answering(kept: Unanswered, answer: AnswerAction, body: bytes) -> Answering:
    """Return the write of a lease's answer. It is no answer to a sample, so the metrics of those do not count it."""
    return Answering(
        answer.action,
        kept.entry,
        "",
        body,
        KEEP_S,
        kept.submitted.tenant,
        outcome=kept.outcome,
        settled=answer.settled,
    )
