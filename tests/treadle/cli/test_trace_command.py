"""``treadle trace``: rows below their parents, and bars on one axis of time."""

from __future__ import annotations

from io import StringIO

import msgspec
from rich.console import Console

from services.proxy.records.trace_spans import trace_of
from shared.api.otlp import TraceData
from tests.services.proxy.records.test_trace_spans import AGENT, CALL, GRADING, LATE, VIEW
from treadle.cli.trace import trace_table

LOST = msgspec.structs.replace(AGENT, name="env.bash", ended="unknown-outcome", reason="[node n1] was lost", stages=())


def drawn(trace: TraceData) -> list[str]:
    output = StringIO()
    Console(file=output, width=120).print(trace_table(trace))
    return [line.rstrip() for line in output.getvalue().splitlines()]


def test_a_trace_is_drawn() -> None:
    quick = msgspec.structs.replace(
        AGENT, stages=(msgspec.structs.replace(AGENT.stages[0], queue_s=0.004, execution_s=5.0),)
    )
    assert drawn(trace_of(VIEW, {"graded": GRADING, "agent": quick}, [CALL, LATE], 0.0)) == [
        "span                             start     time",
        "trajectory                      0.00 s  20.50 s  ████████████████████████████████████████  n1",
        "  env.exec                      1.00 s  10.00 s   ███████████████████▌                     ✓ ok",
        "    run                         1.00 s   8.00 s   ███████████████▋                         n1, 3.00 s parked",
        "    /v1/chat/completions qwen   3.00 s   2.00 s       ███▉                                 10 + 5 tokens",
        "  /v1/chat/completions qwen    11.50 s   0.00 s                        ▏                   10 + 5 tokens",
        "  swe                          12.00 s   6.00 s                         ███████████▊       ✗ ok, score 0.25",
        "    queue                      12.00 s   1.50 s                         ██▉",
        "    compile                    13.50 s   1.00 s                            ██              n1",
        "    queue                      14.50 s   0.50 s                              █",
        "    run                        15.00 s   2.00 s                               ███▉         n2",
    ]


def test_failures_are_shown_with_their_reason_as_it_is() -> None:
    assert drawn(trace_of(VIEW, {"lost": LOST}, [], 0.0))[-1].endswith("✗ unknown-outcome [node n1] was lost")


def test_a_trace_without_time_is_drawn() -> None:
    view = msgspec.structs.replace(VIEW, state="open", ended_at=None)
    assert drawn(trace_of(view, {}, [], view.opened_at))[1].startswith("trajectory  0.00 s  0.00 s  ▏")
