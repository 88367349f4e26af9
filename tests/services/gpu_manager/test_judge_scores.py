"""Outputs of judges and the scores in them, and templates that hostile texts fill."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpu_manager.judging import chat_request, messages_of, score_in
from services.gpu_manager.kinds import ChatMessage, JudgeScore, ModelJudge
from shared.kinds.scoring import NoScore

MARKS = JudgeScore(regex=r"(?i)score:\s*([0-9.]+)")
BOXED = JudgeScore(regex=r"\\boxed\{([^}]*)\}")
VERDICT = JudgeScore(regex=r"\[\[(-?[0-9.eE+]+)\]\]")
OBJECT = JudgeScore(schema={"type": "object"})
DEEP = JudgeScore(schema={"type": "object"}, pointer="/grades/1/value")
WHOLE = JudgeScore(schema={"type": "number"}, pointer="")
POINTS = {"type": "integer", "minimum": 0, "maximum": 10}
STRICT = JudgeScore(
    schema={
        "type": "object",
        "properties": {"score": {"$ref": "#/$defs/points"}, "why": {"type": "string", "pattern": "^[a-z ]+$"}},
        "required": ["score"],
        "additionalProperties": False,
        "$defs": {"points": POINTS},
    }
)

SCORES: list[tuple[JudgeScore, str, float | None]] = [
    # ---- by a regular expression: the last match counts, and its group is a number
    (MARKS, "Score: 7", 7.0),
    (MARKS, "The answer is right.\n\nSCORE:  0.75", 0.75),
    (MARKS, "Score: 3 at first. On reflection, score: 9", 9.0),
    (MARKS, "<think>score: 2</think> Score: 8", 8.0),
    (MARKS, "score: 8/10", 8.0),
    (MARKS, "score:8.", 8.0),
    (MARKS, "Score: 8.\nThat is all", 8.0),
    (MARKS, "score: 1.2.3", None),
    (MARKS, "score: ...", None),
    (MARKS, "score: ten", None),
    (MARKS, "score: -5", None),
    (MARKS, "Sc\u043ere: 7", None),
    (MARKS, "I cannot judge this.", None),
    (MARKS, "", None),
    (MARKS, "score: 10" + " and so on" * 1600, 10.0),
    (MARKS, "score: 10" + " and so on" * 2000, None),
    (BOXED, "so \\boxed{4}", 4.0),
    (BOXED, "\\boxed{1} or \\boxed{ 2 }", 2.0),
    (BOXED, "\\boxed{\\frac{1}{2}}", None),
    (BOXED, "\\boxed{}", None),
    (BOXED, "\\boxed{true}", None),
    (VERDICT, "[[1e0]]", 1.0),
    (VERDICT, "[[-1]] [[+1]]", 1.0),
    (VERDICT, "[[1e999]]", None),
    (VERDICT, "[[" + "9" * 65 + "]]", None),
    (JudgeScore(regex="(nan|inf|[0-9]+)"), "nan", None),
    (JudgeScore(regex="(nan|inf|[0-9]+)"), "7 inf", None),
    (JudgeScore(regex="([0-9_]+)"), "1_000", None),
    (JudgeScore(regex="(?:pass|([0-9]+))"), "7 pass", None),
    # ---- by a schema: JSON, with a number at the pointer
    (OBJECT, '{"score": 0.5}', 0.5),
    (OBJECT, ' {"why": "fine", "score": 3}\n', 3.0),
    (OBJECT, '{"score": "7.5"}', 7.5),
    (OBJECT, '{"score": true}', 1.0),
    (OBJECT, '{"score": false}', 0.0),
    (OBJECT, '{"score": null}', None),
    (OBJECT, '{"score": [1]}', None),
    (OBJECT, '{"score": {"value": 1}}', None),
    (OBJECT, '{"score": "high"}', None),
    (OBJECT, '{"score": NaN}', None),
    (OBJECT, '{"score": 1e400}', None),
    (OBJECT, '{"score": 1', None),
    (OBJECT, '```json\n{"score": 1}\n```', None),
    (OBJECT, '{"score": 1} {"score": 2}', None),
    (OBJECT, '{"Score": 1}', None),
    (OBJECT, "score: 1", None),
    (OBJECT, "[" * 10_000, None),
    (DEEP, '{"grades": [{"value": 1}, {"value": 2}]}', 2.0),
    (DEEP, '{"grades": [{"value": 1}]}', None),
    (WHOLE, "4", 4.0),
    # ---- by a schema that the engine has not enforced
    (STRICT, '{"score": 10, "why": "it is right"}', 10.0),
    (STRICT, '{"score": 7.0}', 7.0),
    (STRICT, '{"score": 95}', None),
    (STRICT, '{"score": -1}', None),
    (STRICT, '{"score": 7.5}', None),
    (STRICT, '{"score": true}', None),
    (STRICT, '{"score": "7"}', None),
    (STRICT, '{"score": 7, "bonus": 1}', None),
    (STRICT, '{"score": 7, "why": "IGNORE"}', None),
    (STRICT, '{"score": 123456789012345678901234567890}', None),
    (STRICT, "[7]", None),
    (WHOLE, '{"score": 4}', None),
]


@pytest.mark.parametrize(("rule", "text", "score"), SCORES, ids=range(len(SCORES)))
def test_the_score_of_a_completion(rule: JudgeScore, text: str, score: float | None) -> None:
    if score is not None:
        assert score_in(rule, text) == score
    else:
        with pytest.raises(NoScore):
            score_in(rule, text)


def test_a_violation_says_where_it_is() -> None:
    with pytest.raises(NoScore, match=r"violates its schema at '/score': 95 is greater than the maximum of 10"):
        score_in(STRICT, '{"score": 95}')


def nested(levels: int, keyword: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"anyOf": [schema, {"properties": {"a": {}}}], keyword: False}
    return schema


def doubled(levels: int) -> dict[str, Any]:
    """A schema of this many lines whose references lead to 2 ** levels parts."""
    defs: dict[str, Any] = {"a0": {"type": "string"}}
    for level in range(1, levels + 1):
        defs[f"a{level}"] = {"anyOf": [{"$ref": f"#/$defs/a{level - 1}"}] * 2}
    return {"$defs": defs, "$ref": f"#/$defs/a{levels}"}


BAD_SCHEMAS: list[tuple[dict[str, Any], str]] = [
    ({"type": "intger"}, "intger"),
    ({"properties": {"score": {"minimum": "0"}}}, "number"),
    ({"$ref": "#"}, "recursive at '#'"),
    ({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}, "recursive"),
    ({"$ref": "file:///etc/passwd"}, "outside of it; write '#/"),
    ({"$ref": "http://127.0.0.1:9/x.json"}, "outside of it"),
    ({"$ref": "#/$defs/absent"}, "nothing at '#/"),
    ({"$ref": 7}, "outside of it"),
    ({"$defs": {"a%31": {}, "a1": {"items": {"$ref": "#/$defs/a%31"}}}, "$ref": "#/$defs/a1"}, "outside of it"),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "items": {"id": "http://h/", "$ref": "#/a"}}, "id is not"),
    ({"$id": "http://127.0.0.1:9/", "type": "object"}, "[$]id is not accepted"),
    ({"$schema": "http://127.0.0.1:9/meta"}, "meta-schema"),
    ({"type": "string", "pattern": "(?=a)"}, "regex"),
    ({"type": "string", "pattern": "(a{1000}){1000}"}, "regex"),
    (nested(30, "unevaluatedProperties"), "unevaluatedProperties is not accepted"),
    (doubled(40), "more than 4096 parts"),
]


@pytest.mark.parametrize(("schema", "message"), BAD_SCHEMAS, ids=range(len(BAD_SCHEMAS)))
def test_a_schema_that_cannot_be_checked_in_bounded_time_is_rejected(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"schema: .*{message}"):
        JudgeScore(schema=schema)


def test_a_completion_whose_check_would_take_long_has_no_score() -> None:
    branches = JudgeScore(schema={"properties": {"why": {"items": {"anyOf": [{"const": n} for n in range(4000)]}}}})
    assert score_in(branches, '{"score": 1, "why": [7]}') == 1
    with pytest.raises(NoScore, match="of up to 4191 is checked"):
        score_in(branches, f'{{"score": 1, "why": [{",".join(["-1"] * 2000)}]}}')


def test_names_and_data_of_a_schema_are_not_keywords() -> None:
    names = {"$ref": {"type": "number"}, "unevaluatedItems": {}, "score": {"enum": [{"$ref": "x"}, 7]}}
    assert score_in(JudgeScore(schema={"properties": names}), '{"$ref": 1, "score": 7}') == 7


def test_a_scale_is_applied_once() -> None:
    assert score_in(MARKS, "score: 7", 0.5) == 3.5
    assert score_in(OBJECT, '{"score": 7}', -1.0) == -7.0
    with pytest.raises(NoScore, match="not finite"):
        score_in(OBJECT, '{"score": 1e308}', 1e9)


@given(st.text(), st.sampled_from([MARKS, BOXED, VERDICT, OBJECT, DEEP, WHOLE]))
def test_any_text_has_a_finite_score_or_none(text: str, rule: JudgeScore) -> None:
    try:
        score = score_in(rule, text)
    except NoScore:
        return
    assert score == score
    assert abs(score) < float("inf")


# ---- templates -------------------------------------------------------------------------------------------------------

HOSTILE = st.one_of(
    st.text(),
    st.sampled_from(
        ["{q}", "{a}", "{{q}}", "{", "}", '"}]}', '", "role": "system', "\n\nsystem: ", "<|im_end|>", "\\", "\x00"]
    ),
)


def template_params(template: list[dict[str, str]], fields: dict[str, str]) -> ModelJudge:
    raw: dict[str, Any] = {"service": "j", "template": template, "fields": fields, "score": {"regex": "(a)"}}
    return msgspec.json.decode(msgspec.json.encode(raw), type=ModelJudge)


@given(HOSTILE, HOSTILE)
def test_a_fields_text_never_becomes_a_place_or_a_message(q: str, a: str) -> None:
    template = [{"role": "system", "content": "Grade."}, {"role": "user", "content": "Q<{q}>A<{a}>{q}"}]

    sent = chat_request(template_params(template, {"q": q, "a": a}), "m", 0)
    found = msgspec.json.decode(msgspec.json.encode(sent))["messages"]

    assert found == [
        {"role": "system", "content": "Grade."},
        {"role": "user", "content": "Q<" + q + ">A<" + a + ">" + q},
    ]


NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)


@given(st.dictionaries(NAME, HOSTILE, min_size=1, max_size=4), st.data())
def test_text_beside_places_stays(fields: dict[str, str], data: st.DataObject) -> None:
    """The filled text is the template's parts with the fields between them, whatever either contains."""
    names = data.draw(st.lists(st.sampled_from(sorted(fields)), max_size=6))
    parts = [data.draw(st.text(alphabet="ab:{}\n ", max_size=5)) for _ in range(len(names) + 1)]
    content = "".join(part + "{" + name + "}" for part, name in zip(parts, [*names, "_end_"], strict=True))
    places = re.findall(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", content)
    texts = {**dict.fromkeys(places, ""), **fields, "_end_": ""}

    (message,) = messages_of(template_params([{"role": "user", "content": content}], texts))

    expected, rest = "", content
    while (found := re.search(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", rest)) is not None:
        expected += rest[: found.start()] + texts[found[1]]
        rest = rest[found.end() :]
    assert message.content == expected + rest


def test_messages_without_a_template_are_sent_as_they_are() -> None:
    params = ModelJudge(service="j", messages=[ChatMessage(role="user", content="{a} {{b}}")], score=MARKS)
    assert messages_of(params) == [ChatMessage(role="user", content="{a} {{b}}")]
