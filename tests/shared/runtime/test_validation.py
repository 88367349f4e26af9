"""Sentences for invalid values: the same for bodies that msgspec reads and for those that pydantic reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import Field, ValidationError

from shared.api.tasks import Model
from shared.messages import environments
from shared.runtime.errors import BadRequest
from shared.runtime.patterns import NAME, WORDS, whole, words
from shared.runtime.validation import decoded, explain_details

DOCUMENT = Path(__file__).parents[3] / "docs" / "openapi.json"


class InnerStruct(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=whole(NAME))]
    kind: Literal["a", "b"] = "a"


class OuterStruct(msgspec.Struct, forbid_unknown_fields=True):
    inner: list[InnerStruct]
    number: Annotated[float, msgspec.Meta(gt=0, le=2.5)] | None = None
    count: Annotated[int, msgspec.Meta(ge=1, lt=9)] = 1
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=3)] = "x"
    few: Annotated[list[bool], msgspec.Meta(max_length=1)] = []


class InnerModel(Model):
    name: Annotated[str, Field(pattern=NAME)]
    kind: Literal["a", "b"] = "a"


class OuterModel(Model):
    inner: list[InnerModel]
    number: Annotated[float, Field(gt=0, le=2.5)] | None = None
    count: Annotated[int, Field(ge=1, lt=9)] = 1
    text: Annotated[str, Field(min_length=1, max_length=3)] = "x"
    few: Annotated[list[bool], Field(max_length=1)] = []


ALIKE: list[tuple[Any, str]] = [
    ([], "the body must be an object, not a list"),
    ({}, "missing field `inner`"),
    ({"iner": []}, "unknown field `iner`; the fields are `inner`, `number`, `count`, `text`, `few`"),
    ({"inner": [{}]}, "inner[0]: missing field `name`"),
    ({"inner": [{"name": "x"}, {"nam": 1}]}, "inner[1]: unknown field `nam`; the fields are `name`, `kind`"),
    ({"inner": [{"name": "x\n"}]}, f"inner[0].name: must be {WORDS[NAME]}"),
    ({"inner": {}}, "inner: must be a list, not an object"),
    ({"inner": [], "number": "x"}, "number: must be a number, not text"),
    ({"inner": [], "number": 0}, "number: must be greater than 0"),
    ({"inner": [], "number": 2.6}, "number: must be at most 2.5"),
    ({"inner": [], "count": 0}, "count: must be at least 1"),
    ({"inner": [], "count": 9}, "count: must be at most 8"),
    ({"inner": [], "count": True}, "count: must be a whole number, not true or false"),
    ({"inner": [], "text": ""}, "text: must have at least 1 character"),
    ({"inner": [], "text": "four"}, "text: must have at most 3 characters"),
    ({"inner": [], "text": None}, "text: must be text, not null"),
    ({"inner": [], "few": [True, False]}, "few: must have at most 1 item"),
    ({"inner": [], "few": [1]}, "few[0]: must be true or false, not a whole number"),
]


def by_msgspec(body: Any) -> str:
    with pytest.raises(BadRequest) as raised:
        decoded(msgspec.json.Decoder(OuterStruct), json.dumps(body).encode())
    return raised.value.what


def by_pydantic(body: Any) -> str:
    with pytest.raises(ValidationError) as raised:
        OuterModel.model_validate(body)
    first = raised.value.errors()[0]
    return explain_details({**first, "loc": ("body", *first["loc"])})


@pytest.mark.parametrize(("body", "message"), ALIKE, ids=str)
def test_both_readers_explain_alike(body: Any, message: str) -> None:
    assert by_msgspec(body) == message
    assert by_pydantic(body).replace("less than 9", "at most 8") == message


def test_a_value_outside_a_list_is_shown_beside_the_list() -> None:
    body = {"inner": [{"name": "x", "kind": "c"}]}
    assert by_msgspec(body) == "inner[0].kind: must be one of a, b, not 'c'"
    assert by_pydantic(body) == "inner[0].kind: must be one of a, b, not 'c'"


def test_a_hostile_value_does_not_move_the_place() -> None:
    body = {"inner": [{"name": "x", "kind": "c - at `$.number`"}]}
    assert by_msgspec(body) == "inner[0].kind: must be one of a, b, not 'c - at `$.number`'"


@pytest.mark.parametrize("end", ["", " - at `$", "` - at `$.inner[0]", "` - at `$." + "b" * 1000])
@pytest.mark.parametrize("inside", [False, True])
def test_a_long_name_of_a_field_is_cut(end: str, inside: bool) -> None:
    name = "a" * 1000 + end
    body = {"inner": [{name: 1}]} if inside else {name: 1}
    sentence = by_msgspec(body)
    assert f"unknown field `{'a' * 64}`; the fields are `" in sentence
    assert len(sentence) < 300


def test_long_keys_of_an_object_are_cut() -> None:
    details = {"type": "int_type", "loc": ("body", "units", "a" * 1000, "b"), "input": "x"}
    assert explain_details(details) == f"units.{'a' * 64}.b: must be a whole number, not text"


def test_a_types_description_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs a hundred times more than decoding, and a bulk call may have thousands of invalid lines."""
    described: list[Any] = []
    compute = msgspec.inspect.type_info

    def counted(model: Any) -> msgspec.inspect.Type:
        described.append(model)
        return compute(model)

    class FirstRead(msgspec.Struct, forbid_unknown_fields=True):
        name: str = ""

    monkeypatch.setattr(msgspec.inspect, "type_info", counted)
    for _ in range(3):
        with pytest.raises(BadRequest, match="unknown field `nam`; the fields are `name`"):
            decoded(msgspec.json.Decoder(FirstRead), b'{"nam": 1}')
    assert described == [FirstRead]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"text": "\xff"}', "the text is not UTF-8: byte 0xff at 0; encode text as UTF-8"),
        (b"", "the text is not JSON: Input data was truncated (or is empty, or a text holds half of a surrogate pair)"),
    ],
)
def test_bytes_that_are_no_json_are_named(raw: bytes, message: str) -> None:
    with pytest.raises(BadRequest) as raised:
        decoded(msgspec.json.Decoder(OuterStruct), raw, "the text")
    assert raised.value.what == message


def test_nesting_without_end_is_named() -> None:
    with pytest.raises(BadRequest, match=r"^params has too many lists and objects inside each other$"):
        decoded(msgspec.json.Decoder(dict[str, Any]), b'{"inner": ' + b"[" * 100_000, "params")


def test_every_pattern_of_a_request_has_a_description() -> None:
    document = json.loads(DOCUMENT.read_text())
    found = {pattern for pattern in patterns_of(document) if "matches" in words(pattern)}
    assert found == {r"^\d+-\d+$", "^([Tt]rue|[Ff]alse|1|0|on|off|yes|no)$"}, "a cursor in an answer; a form's field"


def patterns_of(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*(patterns_of(each) for each in node))
    if not isinstance(node, dict):
        return set()
    own = {node["pattern"]} if isinstance(node.get("pattern"), str) else set()
    return own.union(*(patterns_of(each) for each in node.values()))


def test_a_name_does_not_end_with_a_newline() -> None:
    with pytest.raises(BadRequest, match="must be letters, digits and '_'"):
        decoded(msgspec.json.Decoder(dict[environments.Variable, str]), b'{"A\\n": ""}')


def test_a_literal_or_a_number_names_both() -> None:
    decoder = msgspec.json.Decoder(dict[str, float | Literal["learned"]])
    with pytest.raises(BadRequest, match=r"must be a number or one of learned, not 'x'"):
        decoded(decoder, b'{"search": "x"}')
