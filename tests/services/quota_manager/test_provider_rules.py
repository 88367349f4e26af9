"""Rules of callers about answers: pushback, exhaustion and failure in any form."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from services.quota_manager.kinds import HttpCall
from services.quota_manager.provider import Reading, read_answer
from shared.kinds.provider_rules import ProviderRules

NOW = 1_700_000_000.0


def rules(*given: dict[str, Any]) -> ProviderRules:
    """Decode rules as a kind's parameters have them."""
    call = {"url": "http://upstream.example/", "rules": given}
    return msgspec.json.decode(json.dumps(call), type=HttpCall).rules


def read(rule: dict[str, Any], status: int, body: object, **headers: str) -> Reading:
    packed = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_answer(status, headers, packed, rules(rule), NOW)


MATCHES: list[tuple[dict[str, Any], int, object, dict[str, str], bool]] = [
    ({"status": [418, "500-503"]}, 418, {}, {}, True),
    ({"status": [418, "500-503"]}, 500, {}, {}, True),
    ({"status": [418, "500-503"]}, 503, {}, {}, True),
    ({"status": [418, "500-503"]}, 504, {}, {}, False),
    ({"body": "(?i)captcha"}, 200, b"<html>Solve this CAPTCHA</html>", {}, True),
    ({"body": "(?i)captcha"}, 200, b"<html>results</html>", {}, False),
    ({"body": "caf\u00e9"}, 200, "caf\u00e9".encode(), {}, True),
    ({"body": "x"}, 200, b"\xff\xfex", {}, True),
    ({"header": {"Server": "^blocked"}}, 200, {}, {"server": "blocked by us"}, True),
    ({"header": {"server": "^blocked"}}, 200, {}, {"via": "blocked"}, False),
    ({"pointer": {"path": "/result", "is": "empty"}}, 200, {"result": []}, {}, True),
    ({"pointer": {"path": "/result", "is": "empty"}}, 200, {"result": None}, {}, True),
    ({"pointer": {"path": "/result", "is": "empty"}}, 200, {"result": 0}, {}, False),
    ({"pointer": {"path": "/result", "is": "empty"}}, 200, {}, {}, False),
    ({"pointer": {"path": "/result", "is": "missing"}}, 200, {}, {}, True),
    ({"pointer": {"path": "/result", "is": "missing"}}, 200, {"result": None}, {}, False),
    ({"pointer": {"path": "/result", "is": "missing"}}, 200, b"no json", {}, False),
    ({"pointer": {"path": "/a/1/b~1c", "is": 7}}, 200, {"a": [0, {"b/c": 7}]}, {}, True),
    ({"pointer": {"path": "/ok", "is": True}}, 200, {"ok": 1}, {}, False),
    ({"pointer": {"path": "", "is": "empty"}}, 200, [], {}, True),
    ({"status": [200], "body": "no"}, 200, b"yes", {}, False),
]


@pytest.mark.parametrize(("when", "status", "body", "headers", "matches"), MATCHES)
def test_all_conditions_of_a_rule_must_hold(
    when: dict[str, Any], status: int, body: object, headers: dict[str, str], matches: bool
) -> None:
    found = read({"when": when, "then": "exhausted", "reason": "mine"}, status, body, **headers)
    assert (found.reason == "mine") is matches


def test_the_first_rule_counts_and_comes_before_what_is_common() -> None:
    known = rules(
        {"when": {"status": [429]}, "then": "ok"},
        {"when": {"status": ["400-499"]}, "then": "failed", "for_s": 30, "reason": "mine"},
    )
    assert read_answer(429, {}, b"", known, NOW) == Reading("ok")
    assert read_answer(404, {"retry-after": "5"}, b"", known, NOW) == Reading("failed", 30.0, "mine", True)
    assert read_answer(500, {}, b"", known, NOW).answer == "failed"
    headers = {"retry-after": "5"}
    pushed = rules({"when": {"status": [404]}, "then": "pushed-back"})
    assert read_answer(404, headers, b"", pushed, NOW).not_before_s == 5.0, "the headers count without `for_s`"


@pytest.mark.parametrize(
    "rule",
    [
        {"when": {}, "then": "ok"},
        {"when": {"body": "("}, "then": "ok"},
        {"when": {"body": "(a)\\1"}, "then": "ok"},
        {"when": {"body": "(x{1000}){1000}"}, "then": "ok"},
        {"when": {"body": "a" * 1025}, "then": "ok"},
        {"when": {"body": r"\pL{0,290}N"}, "then": "ok"},
        {"when": {"body": r"[\pL\pN\pS]" * 80}, "then": "ok"},
        {"when": {"status": [99]}, "then": "ok"},
        {"when": {"status": ["5xx"]}, "then": "ok"},
        {"when": {"status": [500]}, "then": "retry"},
        {"when": {"status": [500]}, "then": "ok", "for_s": 3601},
        {"when": {"pointer": {"path": "result", "is": "empty"}}, "then": "ok"},
        {"when": {"stauts": [500]}, "then": "ok"},
    ],
)
def test_a_wrong_rule_is_rejected(rule: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        rules(rule)


def with_patterns(*patterns: str) -> list[dict[str, Any]]:
    return [{"when": {"body": pattern}, "then": "ok"} for pattern in patterns]


def test_the_patterns_of_all_rules_are_bounded_before_they_are_compiled() -> None:
    assert len(rules(*with_patterns(*["a" * 128] * 32))) == 32
    with pytest.raises(msgspec.ValidationError, match="33 patterns of 33 characters; they may have 32 patterns"):
        rules({"when": {"body": "a", "header": {"x": "b"}}, "then": "ok"}, *with_patterns(*["c"] * 31))
    with pytest.raises(msgspec.ValidationError, match="5 patterns of 4097 characters"):
        rules(*with_patterns(*["(" * 1024] * 4, "("))


def test_patterns_take_linear_time_over_hostile_bodies() -> None:
    """With `re`, this would run into the time limit of the tests."""
    read({"when": {"body": "(a+)+$"}, "then": "ok"}, 200, b"a" * 200_000 + b"b")


def test_deep_json_is_no_document() -> None:
    deep = b"[" * 1_000_000
    assert read({"when": {"pointer": {"path": "/a", "is": "missing"}}, "then": "failed"}, 200, deep).answer == "ok"
