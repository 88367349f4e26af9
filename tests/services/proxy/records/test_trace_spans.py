"""Spans of a trace: what OpenTelemetry's own types read, and where in time they are."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from services.proxy.records.trace_spans import trace_of
from shared.api.otlp import Span, TraceData
from shared.api.tokens import RecordedCall
from shared.api.trajectories import TrajectoryView
from shared.bus.traces import TracedAction, TracedStage
from shared.tokens.calls import VersionSpan

VIEW = TrajectoryView(
    id="t0123456789abcdef01234567",
    state="closed",
    reason="its trainer has closed it",
    tenant="ada",
    task="swe",
    group="",
    request_id=None,
    node_class="default",
    node="n1",
    environment={},
    opened_at=1_700_000_000.0,
    active_at=1_700_000_010.0,
    ended_at=1_700_000_020.5,
    record="tokens",
)
AGENT = TracedAction(
    name="env.exec",
    arrived_s=1_700_000_001.0,
    total_s=10.0,
    queue_s=1.0,
    execution_s=4.0,
    ended="ok",
    reason="",
    passed=True,
    score=None,
    request="r1",
    batch="",
    stages=(TracedStage("run", "n1", 1, 1, 1.0, 4.0, 3.0),),
    in_environment=True,
)
GRADING = TracedAction(
    name="swe",
    arrived_s=1_700_000_012.0,
    total_s=6.0,
    queue_s=2.0,
    execution_s=3.0,
    ended="ok",
    reason="",
    passed=False,
    score=0.25,
    request="",
    batch="b1",
    stages=(
        TracedStage("compile", "n1", 1, 1, 1.5, 1.0, 0.0),
        TracedStage("run", "n2", 2, 2, 0.5, 2.0, 0.0),
    ),
    in_environment=False,
)
CALL = RecordedCall(
    serial=0,
    call="c1",
    extends=None,
    prompt_tokens=10,
    output_tokens=5,
    status="complete",
    reason="",
    logprobs_of="raw",
    temperature=0.5,
    versions=[VersionSpan("v7", 0, 5)],
    finish_reason="stop",
    route="/v1/chat/completions",
    model="qwen",
    worker="w1",
    created_at=1_700_000_003.0,
    ended_at=1_700_000_005.0,
)
LATE = msgspec.structs.replace(CALL, serial=1, call="c2", created_at=1_700_000_011.5, ended_at=None)
TRACE = trace_of(VIEW, {"graded": GRADING, "agent": AGENT}, [CALL, LATE], 0.0)


def seconds(span: Span) -> tuple[str, float, float]:
    start = round(span.start_s - VIEW.opened_at, 3)
    return span.name, start, round(start + span.duration_s, 3)


def below(trace: TraceData, name: str) -> list[str]:
    (parent,) = [one.span_id for one in trace.spans if one.name == name]
    return [one.name for one in trace.spans if one.parent_span_id == parent]


def read(trace: TraceData) -> ExportTraceServiceRequest:
    """The trace as OpenTelemetry's types read it. Ids are hexadecimal in OTLP/JSON; protobuf's own JSON has base64."""
    document: Any = json.loads(msgspec.json.encode(trace))
    for span in (one for each in document["resourceSpans"] for scope in each["scopeSpans"] for one in scope["spans"]):
        for name in {"traceId", "spanId", "parentSpanId"} & set(span):
            span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    request = ExportTraceServiceRequest()
    json_format.ParseDict(document, request)  # refuses unknown names and wrong types
    return request


def test_stages_follow_one_another_and_calls_are_below_the_action_that_made_them() -> None:
    assert [seconds(one) for one in TRACE.spans] == [
        ("trajectory", 0.0, 20.5),
        ("env.exec", 1.0, 11.0),
        ("queue", 1.0, 2.0),
        ("run", 2.0, 9.0),
        ("/v1/chat/completions qwen", 3.0, 5.0),
        ("/v1/chat/completions qwen", 11.5, 11.5),
        ("swe", 12.0, 18.0),
        ("queue", 12.0, 13.5),
        ("compile", 13.5, 14.5),
        ("queue", 14.5, 15.0),
        ("run", 15.0, 17.0),
    ]
    root, agent, _, execution, call, late, *_ = TRACE.spans
    assert below(TRACE, "trajectory") == ["env.exec", "/v1/chat/completions qwen", "swe"]
    assert below(TRACE, "swe") == ["queue", "compile", "queue", "run"]
    assert execution.parent_span_id == call.parent_span_id == agent.span_id
    assert late.parent_span_id == root.span_id


def test_opentelemetry_reads_the_ids_the_times_and_the_attributes() -> None:
    request = read(TRACE)
    services = [
        {one.key: one.value.string_value for one in each.resource.attributes} for each in request.resource_spans
    ]
    assert services == [
        {"service.namespace": "treadle", "service.name": "proxy"},
        {"service.namespace": "treadle", "service.name": "trajectory_router"},
    ]
    spans = [one for each in request.resource_spans for scope in each.scope_spans for one in scope.spans]
    assert {one.trace_id.hex() for one in spans} == {"000000000123456789abcdef01234567"}
    assert len({one.span_id for one in spans}) == len(spans) == 11
    assert {len(one.span_id) for one in spans} == {8}
    root = spans[0]
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (1_700_000_000 * 10**9, 1_700_000_020_500_000_000)
    call = next(one for one in spans if one.kind == one.SPAN_KIND_CLIENT)
    found = {one.key: getattr(one.value, one.value.WhichOneof("value") or "") for one in call.attributes}
    assert found == {
        "gen_ai.request.model": "qwen",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "treadle.finish_reason": "stop",
        "treadle.call": "c1",
        "treadle.serial": 0,
        "treadle.worker": "w1",
        "treadle.record_status": "complete",
        "treadle.policy_versions": "v7",
    }
    graded = next(one for one in spans if one.name == "swe")
    found = {one.key: getattr(one.value, one.value.WhichOneof("value") or "") for one in graded.attributes}
    assert (found["treadle.passed"], found["treadle.score"], found["treadle.batch"]) == (False, 0.25, "b1")


def test_failures_of_ours_are_errors_and_wrong_answers_are_none() -> None:
    lost = msgspec.structs.replace(AGENT, ended="unknown-outcome", reason="node n1 was lost", passed=None)
    aborted = msgspec.structs.replace(CALL, status="aborted", reason="its client has gone")
    view = msgspec.structs.replace(VIEW, state="lost", reason="node n1 was lost")
    trace = trace_of(view, {"agent": lost, "graded": GRADING}, [aborted], 0.0)
    failed = {one.name: one.status.message for one in trace.spans if one.status.code}
    assert failed == {
        "trajectory": "node n1 was lost",
        "env.exec": "node n1 was lost",
        "/v1/chat/completions qwen": "its client has gone",
    }
    codes = [(one.name, one.status.code) for one in read(trace).resource_spans[0].scope_spans[0].spans]
    assert codes[:5] == [("trajectory", 2), ("env.exec", 2), ("queue", 0), ("run", 0), ("swe", 0)]


def test_an_open_trajectory_ends_now_and_one_without_work_has_its_root() -> None:
    view = msgspec.structs.replace(VIEW, state="open", ended_at=None, node=None)
    (root,) = trace_of(view, {}, [], VIEW.opened_at + 3.0).spans
    assert seconds(root) == ("trajectory", 0.0, 3.0)
    assert trace_of(view, {}, [], VIEW.opened_at - 1.0).spans[0].duration_s == 0.0, "clocks of two machines differ"


durations = st.floats(0, 1e4)
stages = st.builds(
    TracedStage, st.text(max_size=3), st.just("n"), st.just(1), st.just(1), durations, durations, durations
)
actions = st.builds(
    TracedAction,
    name=st.text(max_size=3),
    arrived_s=st.floats(1e9, 2e9),
    total_s=durations,
    queue_s=durations,
    execution_s=durations,
    ended=st.sampled_from(["ok", "timeout", "cancelled", "lost"]),
    reason=st.text(max_size=3),
    passed=st.none() | st.booleans(),
    score=st.none() | st.floats(-1, 1),
    request=st.text(max_size=3),
    batch=st.text(max_size=3),
    stages=st.lists(stages, max_size=3).map(tuple),
    in_environment=st.booleans(),
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), actions, max_size=4), st.booleans())
def test_every_trace_is_a_tree_whose_stages_are_within_their_actions(
    traced: dict[str, TracedAction], called: bool
) -> None:
    trace = trace_of(VIEW, traced, [CALL, LATE] if called else [], 0.0)
    read(trace)
    by_id = {one.span_id: one for one in trace.spans}
    assert len(by_id) == len(trace.spans)
    assert [one.name for one in trace.spans if not one.parent_span_id] == ["trajectory"]
    for one in trace.spans:
        assert one.duration_s >= 0
        parent = by_id.get(one.parent_span_id)
        if parent is not None and parent.parent_span_id and one.kind == 1:
            assert int(parent.start_time_unix_nano) <= int(one.start_time_unix_nano)
            assert int(one.end_time_unix_nano) <= int(parent.end_time_unix_nano)
