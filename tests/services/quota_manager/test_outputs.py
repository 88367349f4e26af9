"""Outputs of calls: bounded JSON with allowed headers, documents of a checked shape."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.quota_manager.outgoing.calls import OutgoingAnswer
from services.quota_manager.outputs import InvalidDocuments, documents_output, http_output

LIMIT = 64 << 10


def answer(body: bytes, *headers: tuple[str, str]) -> OutgoingAnswer:
    return OutgoingAnswer(200, headers, body, "https://api.example/", 0.1, 0.1)


def output(body: bytes, *headers: tuple[str, str], limit: int = LIMIT) -> dict[str, Any]:
    encoded = http_output(answer(body, *headers), limit)
    assert len(encoded) <= limit
    return dict(msgspec.json.decode(encoded))


def test_json_is_json_and_other_text_is_text() -> None:
    assert output(b'{"a": [1, null]}')["json"] == {"a": [1, None]}
    assert output(b"<html>")["text"] == "<html>"
    assert output(b"") == {"status": 200, "headers": {}}


@pytest.mark.parametrize(
    "body",
    [b"\xff\xfe", b'{"a": "\\ud800"}', b"[" * 100 + b"]" * 100, b'{"a": NaN}', b"[" * 60_000, b'{"a": 1} trailing'],
    ids=ascii,
)
def test_json_that_a_reader_would_reject_is_text(body: bytes) -> None:
    shown = output(body, limit=1 << 20)
    assert ("json" in shown, shown["text"]) == (False, body.decode("utf-8", "replace"))


@pytest.mark.parametrize("body", [b"x" * (1 << 20), b'"' * (1 << 20), b"\x00" * (1 << 20), "é".encode() * (1 << 20)])
def test_a_long_body_is_cut_and_flagged(body: bytes) -> None:
    shown = output(body)
    assert shown["truncated"] is True
    assert body.decode().startswith(shown["text"])


def test_headers_are_an_allow_list() -> None:
    hidden = [("set-cookie", "a=b"), ("authorization", "Bearer x"), ("server", "x"), ("location", "http://10.0.0.1/"),
              ("x-api-key", "x"), ("www-authenticate", "x")]  # fmt: skip
    shown = [("content-type", "text/html"), ("x-ratelimit-remaining-requests", "3"), ("retry-after", "7" * 1000)]

    headers = output(b"", *hidden, *shown)["headers"]

    assert headers == {"content-type": "text/html", "x-ratelimit-remaining-requests": "3", "retry-after": "7" * 256}


def test_documents_are_passed_on_as_they_came() -> None:
    scored = b'{"took": 3, "result": [[{"document": {"contents": "a", "id": 7}, "score": 0.5, "more": 1}], []]}'
    plain = b'{"result": [[{"contents": "a"}, {"contents": "b"}]]}'

    assert msgspec.json.decode(documents_output(scored, queries=2, scores=True, limit=LIMIT)) == {
        "result": [[{"document": {"contents": "a", "id": 7}, "score": 0.5, "more": 1}], []]
    }
    assert msgspec.json.decode(documents_output(plain, queries=1, scores=False, limit=LIMIT)) == {
        "result": [[{"contents": "a"}, {"contents": "b"}]]
    }


@pytest.mark.parametrize(
    ("body", "scores", "message"),
    [
        (b"<html>", True, "the answer is not"),
        (b"{}", True, "the answer is not"),
        (b'{"result": null}', True, "the answer is not"),
        (b'{"result": []}', True, "0 lists of documents for 1 queries"),
        (b'{"result": [[], []]}', True, "2 lists of documents for 1 queries"),
        (b'{"result": [{}]}', True, "the answer is not"),
        (b'{"result": [[{"contents": "a"}]]}', True, "the answer is not"),
        (b'{"result": [[{"document": {}, "score": 1}]]}', True, "the answer is not"),
        (b'{"result": [[{"document": {"contents": 1}, "score": 1}]]}', True, "the answer is not"),
        (b'{"result": [[{"document": {"contents": "a"}}]]}', True, "the answer is not"),
        (b'{"result": [[{"document": {"contents": "a"}, "score": 1}]]}', False, "the answer is not"),
        (b'{"result": [[{"contents": "\\ud800"}]]}', False, "the answer is not"),
        (b'{"result": [[{"contents": "' + b"a" * LIMIT + b'"}]]}', False, "a result may have"),
    ],
    ids=range(13),
)
def test_another_shape_is_no_result(body: bytes, scores: bool, message: str) -> None:
    with pytest.raises(InvalidDocuments, match=message):
        documents_output(body, queries=1, scores=scores, limit=LIMIT)
