"""What a task says of its calls is checked when it is declared, not at its first call."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from shared.api.tasks import StageTemplate

URL = "https://api.example/v1"
RULE = {"when": {"body": "("}, "then": "pushed-back"}


def template(kind: str, params: dict[str, Any]) -> StageTemplate:
    return StageTemplate.model_validate({"name": "call", "kind": kind, "params": params})


@pytest.mark.parametrize("kind", ["http", "search.retrieve"])
@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"url": "ftp://api.example"}, "params.url: it does not begin with http:// or https://"),
        ({"url": "api.example/v1"}, "params.url: it does not begin with http:// or https://"),
        ({"rules": [RULE]}, "params.rules: '(' is no pattern of RE2"),
        ({"rules": [{**RULE, "when": {"body": "a" * 1000}}] * 5}, "params.rules: `rules` have 5 patterns of 5000"),
        ({"rules": [{**RULE, "when": {}}]}, "a rule needs a condition"),
        ({"most_bytes": 0}, "params.most_bytes: must be at least 1"),
    ],
)
def test_a_call_that_can_never_be_made_is_rejected(kind: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as wrong:
        template(kind, params)
    assert words in str(wrong.value)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"extract": {"pattern": "("}}, "params.extract.pattern: '(' is no pattern of RE2"),
        ({"extract": {"pattern": "[0-9]+"}}, "params.extract.pattern: it has 0 groups; write one group"),
        ({"extract": {"pattern": "(?=a)(b)"}}, "params.extract.pattern: '(?=a)(b)' is no pattern of RE2"),
        ({"json": {"a": 1}, "text": "b"}, "`json` and `text` are both bodies"),
    ],
)
def test_an_http_call_that_can_never_be_made_is_rejected(params: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as wrong:
        template("http", params)
    assert words in str(wrong.value)


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("http", {}),
        ("http", {"url": URL.upper(), "extract": {"pattern": "([0-9]+)"}, "rules": [{**RULE, "when": {"body": "a"}}]}),
        ("http", {"extract": None, "json": None, "text": "a"}),
        ("search.retrieve", {"url": URL, "topk": 3}),
    ],
)
def test_a_template_may_leave_the_rest_to_requests(kind: str, params: dict[str, Any]) -> None:
    assert template(kind, params).params == params
