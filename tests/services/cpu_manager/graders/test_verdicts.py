from __future__ import annotations

import marshal

import pytest

from services.cpu_manager.graders.harness_report import NONCE_BYTES, new_nonce, pack, unpack
from services.cpu_manager.graders.verdicts import charged, tail, verdict_of_end
from services.cpu_manager.sandbox.protocol import EndedBy, Exit


@pytest.mark.parametrize("ended_by", ["lost", "cancelled"])
def test_our_own_failures_are_lost_and_never_scored(ended_by: EndedBy) -> None:
    verdict = verdict_of_end(Exit(ended_by=ended_by, detail="the zygote died"))
    assert verdict is not None
    assert (verdict.status, verdict.passed, verdict.score, verdict.reason) == ("lost", None, None, "the zygote died")


@pytest.mark.parametrize("ended_by", ["wall-limit", "cpu-limit"])
def test_time_limits_are_timeouts_with_the_tasks_score(ended_by: EndedBy) -> None:
    verdict = verdict_of_end(Exit(ended_by=ended_by, wall_s=6.0, cpu_s=5.5, peak_memory_bytes=7))
    assert verdict is not None
    assert (verdict.status, verdict.passed, verdict.score) == ("timeout", False, None)
    assert verdict.output == {"error_class": "TimeLimitExceeded"}
    assert (verdict.cpu_s, verdict.peak_memory_bytes) == (5.5, 7)


@pytest.mark.parametrize(
    ("ended_by", "error_class"), [("memory-limit", "MemoryLimitExceeded"), ("output-limit", "OutputLimitExceeded")]
)
def test_other_limits_are_wrong_answers_with_the_limit_named(ended_by: EndedBy, error_class: str) -> None:
    verdict = verdict_of_end(Exit(ended_by=ended_by))
    assert verdict is not None
    assert (verdict.status, verdict.passed, verdict.score) == ("ok", False, 0.0)
    assert verdict.output == {"error_class": error_class}


@pytest.mark.parametrize("ended_by", ["exit", "signal"])
def test_a_program_that_ended_by_itself_is_for_the_grader_to_judge(ended_by: EndedBy) -> None:
    assert verdict_of_end(Exit(ended_by=ended_by, exit_code=0)) is None


def test_several_jobs_are_charged_as_the_sum_of_cpu_and_the_peak_of_memory() -> None:
    ends = [
        Exit(ended_by="exit", cpu_s=1.0, peak_memory_bytes=30),
        Exit(ended_by="exit", cpu_s=0.5, peak_memory_bytes=20),
    ]
    verdict = verdict_of_end(Exit(ended_by="lost"))
    assert verdict is not None
    verdict = charged(verdict, ends)
    assert (verdict.cpu_s, verdict.peak_memory_bytes) == (1.5, 30)


def test_a_tail_is_the_end_of_the_text_whatever_bytes_it_is_made_of() -> None:
    assert tail(b"x" * 9000 + "é".encode() + b"\xff!", chars=3) == "é\ufffd!"


def test_a_report_with_the_nonce_is_sealed() -> None:
    nonce = new_nonce()
    report = unpack(nonce + b'{"a": 1}', nonce)
    assert report is not None
    assert (report.authentic, report.details) == (True, {"a": 1})


def test_a_report_without_the_nonce_is_only_a_claim() -> None:
    report = unpack(b'{"a": 1}', new_nonce())
    assert report is not None
    assert (report.authentic, report.details) == (False, {"a": 1})


@pytest.mark.parametrize("before", [b"", b"{}", b"x", b"0" * NONCE_BYTES + b"{}", b"\xff\xfe"])
@pytest.mark.parametrize("after", [b"x", b"[1]", b"{} {}", b"\xff"])
def test_garbage_around_a_nonce_is_no_report(before: bytes, after: bytes) -> None:
    nonce = new_nonce()
    assert unpack(before + nonce + after, nonce) is None


def test_nonces_differ_and_head_the_payload() -> None:
    nonce, other = new_nonce(), new_nonce()
    assert nonce != other
    assert len(nonce) == NONCE_BYTES
    packed = pack(nonce, {"tests": "x"})
    assert packed.startswith(nonce)
    assert marshal.loads(packed[len(nonce) :]) == {"tests": "x"}
