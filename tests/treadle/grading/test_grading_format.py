from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.grading.check import check_file
from treadle.grading.format import MAX_DEPTH, Complaint, GradingLine, parse, read_file
from treadle.grading.job import workflow_of

HEADER = {"treadle": 1, "task": "t", "workflow": {"stages": [{"name": "run", "kind": "noop"}]}}


def raw(*rows: Any) -> list[bytes]:
    return [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]


def complaints(*rows: Any) -> list[Complaint]:
    return parse(raw(*rows)).complaints


def test_every_field_of_a_line_is_read() -> None:
    row: dict[str, Any] = {
        "id": "a",
        "params": {"echo": "x"},
        "stage_params": {"run": {"echo": "y"}},
        "group": "g",
        "priority": -1,
        "expect": "passed",
        "meta": {"mine": [1]},
    }
    found = parse(raw(HEADER, b"", row))
    assert found.complaints == []
    assert found.lines == [(3, GradingLine(**row))]
    assert (found.header, found.task) == (1, "t")
    assert found.workflow is not None
    assert found.workflow.stages[0].kind == "noop"


@pytest.mark.parametrize(
    ("row", "field", "expected"),
    [
        (b'{"id": ', "", "not JSON"),
        (b'{"id": "a"} {"id": "b"}', "", "one JSON object on one line"),
        (b'{"id": "\xff"}', "", "not JSON"),
        ({}, "id", "missing; add it"),
        ({"id": ""}, "id", "length >= 1"),
        ({"id": 7}, "id", "expected `str`, got `int`"),
        ({"id": "a", "parms": {}}, "parms", "did you mean 'params'?"),
        ({"id": "a", "tokens": 3}, "tokens", "your own data goes under `meta`"),
        ({"id": "a", "params": []}, "params", "expected `object`, got `array`"),
        ({"id": "a", "stage_params": {"run": 1}}, "stage_params[...]", "expected `object`"),
        ({"id": "a", "expect": "pass"}, "expect", "write passed, failed, error, timeout, true or false"),
        ([1], "", "expected `object`, got `array`"),
    ],
)
def test_an_error_names_line_field_and_correction(row: Any, field: str, expected: str) -> None:
    (complaint,) = complaints({"id": "first"}, row)
    assert (complaint.line, complaint.field) == (2, field)
    assert expected in complaint.what
    assert str(complaint).startswith("line 2, ")


def nested(deep: int) -> bytes:
    """A line of so many containers in each other: its own object, `meta`, and lists."""
    return b'{"id": "a", "meta": {"lists": ' + b"[" * (deep - 2) + b"]" * (deep - 2) + b"}}"


@pytest.mark.parametrize("deep", [MAX_DEPTH + 1, 900, 2_000])
def test_a_line_nested_too_deep_is_a_bad_line_like_others(deep: int) -> None:
    expected = Complaint(1, "", f"nested more than {MAX_DEPTH} deep; flatten it")
    found = parse([nested(deep), b'{"id": "b"}'])
    assert found.complaints == [expected]
    assert [line.id for _, line in found.lines] == ["b"]
    assert complaints(b'{"treadle": 1, "workflow": ' + b"[" * deep + b"]" * deep + b"}") == [expected]


def test_a_line_may_be_nested_as_deep_as_the_bound_and_hold_brackets_in_its_texts() -> None:
    assert complaints(nested(MAX_DEPTH)) == []
    assert complaints({"id": "a", "params": {"code": "[{" * MAX_DEPTH}}) == []


def test_an_id_is_unique_and_an_error_names_its_first_line() -> None:
    assert complaints({"id": "a"}, {"id": "b"}, {"id": "a"}) == [
        Complaint(3, "id", "'a' is the id of line 1 already; ids must differ")
    ]


def test_a_header_is_detected_by_its_field_at_any_position() -> None:
    assert parse([b'{"task": "t", "treadle": 1}']).task == "t"
    assert parse([b'{"id": "a", "meta": {"treadle": 1}}']).lines[0][1].meta == {"treadle": 1}
    assert complaints(b'{"treadle": 1') == [
        Complaint(1, "", "not JSON (Input data was truncated); write one JSON object on one line")
    ]


def test_a_header_must_be_first() -> None:
    (complaint,) = complaints({"id": "a"}, HEADER)
    assert (complaint.line, complaint.field) == (2, "treadle")


@pytest.mark.parametrize(
    ("header", "field", "expected"),
    [
        ({"treadle": 2}, "treadle", "invalid enum value 2"),
        ({"treadle": 1, "workflow": {"stages": []}}, "workflow.stages", "at least 1 item"),
        (
            {"treadle": 1, "workflow": {"stages": [{"name": "run", "kind": "code.assert"}]}},
            "workflow.stages.0",
            "unknown kind 'code.assert'; there are",
        ),
        ({"treadle": 1, "taks": "t"}, "taks", "did you mean 'task'?"),
        ({"treadle": 1, "task": "a/b"}, "task", "matching regex"),
    ],
)
def test_a_wrong_header_is_fatal(header: Any, field: str, expected: str) -> None:
    found = parse(raw(header, {"id": "a"}))
    (complaint,) = found.complaints
    assert (complaint.line, complaint.field) == (1, field)
    assert expected in complaint.what
    assert check_file(found, None, "expect").fatal


def test_gzip_is_detected_by_content(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.txt", tmp_path / "b.txt"
    plain.write_bytes(b'{"id": "a"}\n')
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_file(plain) == read_file(packed)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(OSError, match="copy it again"):
        read_file(packed)


def test_parameters_are_checked_against_the_workflow_before_submission() -> None:
    rows = [
        {"id": "good", "params": {"code": "", "tests": ""}},
        {"id": "a", "params": {"tests": ""}},
        {"id": "b", "params": {"code": "", "tests": "", "timeout": 3}},
        {"id": "c", "params": {"code": "", "tests": ""}, "stage_params": {"rum": {}}},
        {"id": "d", "params": {"code": "", "tests": ""}, "stage_params": {"run": {"timeout_s": 0}}},
        {"id": "e", "params": {"code": "", "tests": "", "timeout_s": "3"}},
        {"id": "f", "params": {"code": "", "tests": ""}, "expect": "masked"},
    ]
    checked = check_file(parse(raw(*rows)), workflow_of("code.asserts"), "expect")
    assert [line.id for line in checked.lines] == ["good"]
    assert [(each.line, each.field) for each in checked.complaints] == [
        (2, "params.code"),
        (3, "params.timeout"),
        (4, "stage_params.rum"),
        (5, "stage_params.run.timeout_s"),
        (6, "params.timeout_s"),
        (7, "expect"),
    ]
    assert "missing; add it (stage 'run', code.asserts)" in checked.complaints[0].what
    assert not checked.fatal


def test_a_recorded_verdict_in_meta_must_be_one() -> None:
    found = parse(raw({"id": "a", "meta": {"v": "passed"}}, {"id": "b", "meta": {"v": "ok"}}, {"id": "c"}))
    checked = check_file(found, None, "meta.v")
    assert checked.expected == {"a": "passed"}
    assert [(each.line, each.field) for each in checked.complaints] == [(2, "meta.v")]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40) | st.just(b'{"id":"a"}') | st.just(b'{"treadle":1}')))
def test_each_line_of_random_bytes_is_valid_invalid_blank_or_the_header(rows: list[bytes]) -> None:
    rows = [row.replace(b"\n", b"") for row in rows]
    found = parse(rows)
    good = {number for number, _ in found.lines}
    bad = {each.line for each in found.complaints}
    blank = {number for number, row in enumerate(rows, 1) if not row.strip()}
    assert not good & bad
    assert good | bad | blank | ({found.header} if found.header else set()) == set(range(1, len(rows) + 1))
