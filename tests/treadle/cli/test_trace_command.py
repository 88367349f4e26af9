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


def drawn(trace: TraceData, width: int = 120) -> list[str]:
    output = StringIO()
    Console(file=output, width=width).print(trace_table(trace, width))
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


def test_a_narrow_terminal_has_shorter_bars() -> None:
    lines = drawn(trace_of(VIEW, {"agent": AGENT}, [CALL], 0.0), 80)
    assert lines[1] == "trajectory                     0.00 s  20.50 s  ██████████  n1"
    assert lines[-1] == "    /v1/chat/completions qwen  3.00 s   2.00 s   █          10 + 5 tokens"


def test_texts_of_others_are_shown_short_and_printable() -> None:
    call = msgspec.structs.replace(CALL, model="\x1b]0;owned\x07" + "m" * 500)
    lost = msgspec.structs.replace(LOST, reason="line\none\x1b[2J" + "r" * 160)
    lines = drawn(trace_of(VIEW, {"lost": lost}, [call], 0.0))
    (shown,) = [line for line in lines if "owned" in line]
    assert shown.startswith("    /v1/chat/completions  ]0;owned mmmmmmmm…  3.00 s   2.00 s")
    assert not {one for line in lines for one in line if not one.isprintable()}


def test_a_number_that_json_lacks_is_left_out() -> None:
    graded = msgspec.structs.replace(GRADING, score=float("nan"))
    assert drawn(trace_of(VIEW, {"graded": graded}, [], 0.0))[2].endswith("✗ ok")


def test_a_long_trace_is_drawn_whole() -> None:
    many = {f"a{number}": AGENT for number in range(4000)}
    assert len(drawn(trace_of(VIEW, many, [], 0.0))) == 2 + 4000 * 3
