"""Spans of a trajectory's trace, as OpenTelemetry has them.

The trajectory is the root. Its children are its actions and the actions that were submitted for it (its grading).
Children of an action are its stages: a span `queue`, and one of the stage with its execution. A model call is a child
of the action in whose time it began, because an agent in the environment has made it; otherwise of the root.

Stages are laid one after another from the arrival of their action, because only their durations are stored. So the time
that was neither queueing nor execution is at the end of the action.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Final

from shared.api.otlp import (
    CLIENT,
    ERROR,
    INTERNAL,
    SERVER,
    Attribute,
    ResourceSpans,
    ScopeSpans,
    Span,
    SpanKind,
    Status,
    TraceData,
    TraceResource,
    TraceScope,
    attributes,
    nano,
)
from shared.api.tokens import RecordedCall
from shared.api.trajectories import TrajectoryView
from shared.bus.traces import MOST_TRACED, TracedAction, TracedStage
from shared.policy.model.formulation import INFRASTRUCTURE_FAILURES
from shared.runtime.units import Seconds

SCOPE: Final = TraceScope("treadle")
_OK: Final = Status()


def trace_id(trajectory: str) -> str:
    """Return the id of a trajectory's trace: its own digits, 32 of them."""
    return trajectory.removeprefix("t").rjust(32, "0")


def trace_of(
    view: TrajectoryView, actions: Mapping[str, TracedAction], calls: Sequence[RecordedCall], now: Seconds
) -> TraceData:
    """Return the trace of a trajectory.

    Args:
        view: the trajectory.
        actions: action -> what its trace has of it.
        calls: its recorded model calls.
        now: end of an open trajectory so far, Unix seconds.
    """
    spans = _Spans(view.id)
    root = spans.root(view, actions, now)
    by_arrival = sorted(actions.items(), key=lambda one: (one[1].arrived_s, one[0]))
    work = [root, *(span for action, traced in by_arrival for span in spans.action(action, traced))]
    environment = sorted(
        (traced.arrived_s + traced.total_s, traced.arrived_s, spans.id_of(action))
        for action, traced in by_arrival
        if traced.in_environment
    )
    models = [spans.call(call, _caller(call, environment)) for call in calls]
    return TraceData((_resource("proxy", work), *([_resource("trajectory_router", models)] if models else [])))


class _Spans:
    """Spans of one trace."""

    def __init__(self, trajectory: str) -> None:
        self._trajectory = trajectory
        self._trace = trace_id(trajectory)

    def id_of(self, *names: str) -> str:
        """Return the id of the span of these names in this trace; without names, of its root."""
        return blake2b("\0".join((self._trajectory, *names)).encode(), digest_size=8).hexdigest()

    def root(self, view: TrajectoryView, actions: Mapping[str, TracedAction], now: Seconds) -> Span:
        failed = view.state == "lost"
        return self._span(
            self.id_of(),
            "",
            "trajectory",
            SERVER,
            view.opened_at,
            view.ended_at or max(now, view.opened_at),
            {
                "treadle.trajectory": view.id,
                "treadle.state": view.state,
                "treadle.tenant": view.tenant,
                "treadle.task": view.task,
                "treadle.group": view.group or None,
                "treadle.batch": view.batch,
                "treadle.node": view.node,
                "treadle.record": view.record,
                "treadle.actions_full": True if len(actions) >= MOST_TRACED else None,
            },
            Status(ERROR, view.reason) if failed else _OK,
        )

    def action(self, action: str, traced: TracedAction) -> Iterator[Span]:
        """Yield the span of an action, then those of its stages."""
        own, failed = self.id_of(action), traced.ended in INFRASTRUCTURE_FAILURES
        start_s, end_s = traced.arrived_s, traced.arrived_s + traced.total_s
        yield self._span(
            own,
            self.id_of(),
            traced.name,
            SERVER,
            start_s,
            end_s,
            {
                "treadle.action": action,
                "treadle.request_id": traced.request or None,
                "treadle.batch": traced.batch or None,
                "treadle.ended": traced.ended,
                "treadle.passed": traced.passed,
                "treadle.score": traced.score,
                "treadle.queue_s": traced.queue_s,
                "treadle.execution_s": traced.execution_s,
            },
            Status(ERROR, traced.reason) if failed else _OK,
        )
        at_s = start_s
        for number, stage in enumerate(traced.stages):
            granted_s = min(at_s + stage.queue_s, end_s)
            stage_end_s = min(granted_s + stage.restore_s + stage.execution_s + stage.parked_s, end_s)
            queue, execution = (self.id_of(action, str(number), part) for part in ("queue", "execution"))
            yield self._span(queue, own, "queue", INTERNAL, at_s, granted_s, {}, _OK)
            yield self._span(execution, own, stage.name, INTERNAL, granted_s, stage_end_s, _measured(stage), _OK)
            at_s = stage_end_s

    def call(self, call: RecordedCall, parent: str) -> Span:
        """Return the span of a model call. Attributes: OpenTelemetry's for generative AI, and our own."""
        begin_s = call.created_at
        return self._span(
            self.id_of("call", str(call.serial)),
            parent or self.id_of(),
            f"{call.route} {call.model}".strip(),
            CLIENT,
            begin_s,
            max(begin_s, call.ended_at or begin_s),
            {
                "gen_ai.request.model": call.model or None,
                "gen_ai.request.temperature": call.temperature,
                "gen_ai.usage.input_tokens": call.prompt_tokens,
                "gen_ai.usage.output_tokens": call.output_tokens,
                "treadle.finish_reason": call.finish_reason or None,
                "treadle.call": call.call,
                "treadle.serial": call.serial,
                "treadle.extends": call.extends,
                "treadle.worker": call.worker or None,
                "treadle.record_status": call.status,
                "treadle.policy_versions": ",".join(dict.fromkeys(one.version for one in call.versions)) or None,
            },
            Status(ERROR, call.reason) if call.status == "aborted" else _OK,
        )

    def _span(
        self,
        own: str,
        parent: str,
        name: str,
        kind: SpanKind,
        start_s: Seconds,
        end_s: Seconds,
        values: Mapping[str, Attribute | None],
        status: Status,
    ) -> Span:
        return Span(
            trace_id=self._trace,
            span_id=own,
            parent_span_id=parent,
            name=name,
            kind=kind,
            start_time_unix_nano=nano(start_s),
            end_time_unix_nano=nano(end_s),
            attributes=attributes(values),
            status=status,
        )


def _measured(stage: TracedStage) -> dict[str, Attribute | None]:
    return {
        "treadle.node": stage.node or None,
        "treadle.units": stage.units or None,
        "treadle.attempts": stage.attempts or None,
        "treadle.execution_s": stage.execution_s,
        "treadle.parked_s": stage.parked_s or None,
        "treadle.restore_s": stage.restore_s or None,
    }


def _caller(call: RecordedCall, environment: Sequence[tuple[Seconds, Seconds, str]]) -> str:
    """Return the span of the action in whose time a model call began; empty: there is none.

    `environment`: (end, arrival, span) of the actions there, by their end. They run one at a time, so the caller is the
    first of those that end after the beginning of the call.
    """
    at = bisect_left(environment, (call.created_at,))
    _, arrived_s, own = environment[at] if at < len(environment) else (0.0, math.inf, "")
    return own if arrived_s <= call.created_at else ""


def _resource(service: str, spans: Sequence[Span]) -> ResourceSpans:
    resource = TraceResource(attributes({"service.namespace": "treadle", "service.name": service}))
    return ResourceSpans(resource, (ScopeSpans(SCOPE, tuple(spans)),))
