"""Scores and amounts in answers."""

from __future__ import annotations

import time

import pytest

from services.quota_manager.kinds import Extraction
from services.quota_manager.scoring import amount_of, score_of
from shared.kinds.scoring import NoScore


@pytest.mark.parametrize(
    ("extraction", "body", "score"),
    [
        (Extraction(pointer="/a/0/b"), b'{"a": [{"b": 0.5}]}', 0.5),
        (Extraction(pointer="/a"), b'{"a": "7.5"}', 7.5),
        (Extraction(pointer="/a"), b'{"a": true}', 1.0),
        (Extraction(pointer="/a", scale=0.1), b'{"a": 7}', 0.7),
        (Extraction(), b"3", 3.0),
        (Extraction(pattern=r"score: ([0-9.]+)"), b"score: 1\nscore: 10", 10.0),
        (Extraction(pointer="/text", pattern="([0-9]+)"), b'{"text": "from 1 to 10: 8"}', 8.0),
        (Extraction(pointer="/list", pattern="([0-9]+)"), b'{"list": [1, 2]}', 2.0),
    ],
)
def test_a_score_is_found(extraction: Extraction, body: bytes, score: float) -> None:
    assert score_of(extraction, body) == pytest.approx(score)


@pytest.mark.parametrize(
    ("extraction", "body"),
    [
        (Extraction(pointer="/a"), b"<html>"),
        (Extraction(pointer="/a"), b"{}"),
        (Extraction(pointer="/a"), b'{"a": null}'),
        (Extraction(pointer="/a"), b'{"a": "high"}'),
        (Extraction(pointer="/a"), b'{"a": "nan"}'),
        (Extraction(pointer="/a"), b'{"a": "inf"}'),
        (Extraction(pointer="/a"), b'{"a": "1_0"}'),
        (Extraction(pointer="/a"), b'{"a": []}'),
        (Extraction(pointer="/a", scale=1e9), b'{"a": 1e308}'),
        (Extraction(pointer="/a"), b'{"a": 1' + b"0" * 400 + b"}"),
        (Extraction(pattern="([0-9]+)"), b"none"),
        (Extraction(pattern="x([0-9]+)?"), b"x"),
        (Extraction(pointer="/a"), b"[" * 100_000),
    ],
    ids=range(13),
)
def test_anything_else_is_no_score(extraction: Extraction, body: bytes) -> None:
    with pytest.raises(NoScore):
        score_of(extraction, body)


def test_no_text_makes_a_pattern_slow() -> None:
    """`(a+)+$` takes Python's `re` longer than this universe."""
    began = time.process_time()
    with pytest.raises(NoScore):
        score_of(Extraction(pattern="((?:a+)+)$"), b"a" * (4 << 20) + b"!")
    assert time.process_time() - began < 30


def test_an_amount_is_a_number_from_0() -> None:
    document = {"usage": {"total": 812, "none": None, "negative": -1, "text": "9"}}
    assert [amount_of(f"/usage/{name}", document) for name in ("total", "none", "negative", "missing", "text")] == [
        812.0, None, None, None, 9.0,
    ]  # fmt: skip
    assert amount_of("/usage", None) is None


def test_a_search_ends_when_its_time_is_over() -> None:
    """A pattern that looks at the rest of the text at each match."""
    asked = iter([True] * 9 + [False])
    with pytest.raises(NoScore, match="took too long"):
        score_of(Extraction(pattern="(a)(?:.*b)?"), b"a" * 100, lambda: next(asked))
    assert next(asked, None) is None


def test_json_is_read_up_to_a_size() -> None:
    body = b'{"score": 1, "x": "' + b"x" * ((2 << 20) - 21) + b'"}'
    assert (len(body), score_of(Extraction(pointer="/score"), body)) == (2 << 20, 1.0)
    with pytest.raises(NoScore, match="2097153 bytes; one of up to 2097152"):
        score_of(Extraction(pointer="/score"), body + b" ")
