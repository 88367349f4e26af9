"""Messages for invalid bodies and parameters: the field, and what to write instead.

msgspec decodes bodies on hot routes, pydantic on the others. Both get the same sentences, as in
`stages[0].timeout_s: must be at most 3600`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import inspect

from shared.runtime.errors import SHOWN_CHARS, BadRequest
from shared.runtime.patterns import words

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""Exceptions that a decoder raises for received bytes."""

_TYPES: Final = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
"""JSON types in msgspec's words -> in ours."""
_PARTS: Final = {"str": "character", "array": "item", "object": "field"}
_BOUNDS: Final = {">=": "at least", ">": "greater than", "<=": "at most", "<": "less than"}
_WHERE: Final = {"query": "query parameter {}", "path": "{} in the path", "header": "header {}"}

_AT: Final = " - at `"
_PLACE = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]{0,512})`")
_UNKNOWN: Final = "Object contains unknown field `"
_MISSING = re.compile(r"Object missing required field `(.*)`")
_PATTERN = re.compile(r"Expected `str` matching regex (.*)")
_LENGTH = re.compile(r"Expected `(str|array|object)` of length (>=|<=) (\d+)")
_BOUND = re.compile(r"Expected `(?:int|float)` (>=|<=|>|<) (.*)")
_TYPE = re.compile(r"Expected `(.*)`, got `(.*)`")
_VALUE = re.compile(r"Invalid (?:enum )?value (.*)", re.DOTALL)
_STEP = re.compile(r"\[[^\]]*\]|[^.\[]+")


class Decoder(Protocol[T_co]):
    """A decoder of msgspec."""

    @property
    def type(self) -> type[T_co]: ...

    def decode(self, buf: bytes, /) -> T_co: ...


def decoded(decoder: Decoder[T], raw: bytes | msgspec.Raw, what: str = "") -> T:
    """Decode received bytes. `what` names them in messages; empty: the whole body.

    Raises:
        BadRequest: not text, not JSON, or JSON with an invalid field.
    """
    try:
        return decoder.decode(raw)
    except UNREADABLE as error:
        raise unreadable(error, decoder.type, what) from error


def unreadable(error: Exception, model: Any, what: str = "") -> BadRequest:
    """Return the error for the caller.

    Args:
        error: one of `UNREADABLE`.
        model: the type that was to be decoded.
        what: name of what was decoded; empty: the whole body.
    """
    named, where = what or "the body", f"{what}: " if what else ""
    match error:
        case msgspec.ValidationError():
            sentence = explain(error, model)
            return BadRequest(what=where + sentence if what else _of_body(sentence))
        case UnicodeDecodeError():
            bad = error.object[error.start]
            return BadRequest(what=f"{named} is not UTF-8: byte 0x{bad:02x} at {error.start}; encode text as UTF-8")
        case RecursionError():
            return BadRequest(what=f"{named} has too many lists and objects inside each other")
    hint = " (or is empty, or a text holds half of a surrogate pair)" if "truncated" in str(error) else ""
    return BadRequest(what=f"{named} is not JSON: {error}{hint}")


# ---- sentences ---------------------------------------------------------------------------------------------------


def unknown_field(name: str, allowed: Iterable[str]) -> str:
    """Return the sentence for a field that does not exist."""
    listed = ", ".join(f"`{each}`" for each in allowed)
    return f"unknown field `{name[:SHOWN_CHARS]}`; " + (f"the fields are {listed}" if listed else "there are no fields")


def _missing_field(name: str) -> str:
    return f"missing field `{name}`"


def _of_body(sentence: str) -> str:
    return f"the body {sentence}" if sentence.startswith("must ") else sentence


def _length(kind: str, sign: str, count: int) -> str:
    return f"must have {_BOUNDS[sign]} {count} {_PARTS[kind]}{'' if count == 1 else 's'}"


def _bound(sign: str, bound: float) -> str:
    return f"must be {_BOUNDS[sign]} {int(bound) if bound == int(bound) else bound}"


def _type(expected: Iterable[str], got: str) -> str:
    wanted = [_TYPES.get(each, each) for each in expected if each != "null"]
    listed = " or ".join([", ".join(wanted[:-1]), wanted[-1]] if len(wanted) > 1 else wanted)
    return f"must be {listed}, not {_TYPES.get(got, got)}"


def _listed(allowed: Iterable[Any], got: str, others: str = "") -> str:
    return f"must be {others}one of {', '.join(map(str, allowed))}, not {got[:SHOWN_CHARS]}"


# ---- msgspec -----------------------------------------------------------------------------------------------------


def explain(error: msgspec.ValidationError, model: Any) -> str:
    """Return the field and the sentence for an error of msgspec. `model`: the type that was to be decoded."""
    what, place = _split(str(error))
    path = place["path"] if place else ""
    sentence = _sentence(what, model, _STEP.findall(path))
    if place and place["key"]:
        sentence = f"a key {sentence}"
    return f"{path}: {sentence}" if path else sentence


def _split(text: str) -> tuple[str, re.Match[str] | None]:
    """Return an error's text without its place, and its place. O(n): a field's name may have megabytes."""
    at = text.rfind(_AT)
    place = _PLACE.fullmatch(text, at) if at >= 0 else None
    if place is None or (text.startswith(_UNKNOWN) and text[at - 1] != "`"):  # the end of the field's name
        return text, None
    return text[:at], place


def _sentence(what: str, model: Any, path: Sequence[str]) -> str:
    if what.startswith(_UNKNOWN):
        return unknown_field(what[len(_UNKNOWN) : -1], _fields(_types_at(model, path)))
    if found := _MISSING.fullmatch(what):
        return _missing_field(found[1])
    if found := _PATTERN.fullmatch(what):
        return f"must be {words(ast.literal_eval(found[1]))}"
    if found := _LENGTH.fullmatch(what):
        return _length(found[1], found[2], int(found[3]))
    if found := _BOUND.fullmatch(what):
        return _bound(found[1], float(found[2]))
    if found := _TYPE.fullmatch(what):
        return _type(found[1].split(" | "), found[2])
    if found := _VALUE.fullmatch(what):
        numbers = any(isinstance(each, inspect.FloatType | inspect.IntType) for each in _types_at(model, path))
        return _listed(_values(model, path), found[1], "a number or " if numbers else "")
    return "must be a finite number" if what == "Number out of range" else what


@cache
def _type_info(model: Any) -> inspect.Type:
    """Return msgspec's description of a type. It costs 0.3 ms, too much for each line of a bulk call."""
    return inspect.type_info(model)


def _types_at(model: Any, path: Sequence[str]) -> list[inspect.Type]:
    """Return the types that a value at this path may have, without null."""
    here = _members(_type_info(model))
    for step in path:
        here = [inner for outer in here for inner in _members(_inside(outer, step))]
    return here


def _members(info: inspect.Type | None) -> list[inspect.Type]:
    if isinstance(info, inspect.Metadata):
        return _members(info.type)
    if isinstance(info, inspect.UnionType):
        return [member for each in info.types for member in _members(each)]
    return [] if info is None else [info]


def _inside(outer: inspect.Type, step: str) -> inspect.Type | None:
    """Return the type of a field or an item; None if there is none."""
    if isinstance(outer, inspect.StructType):
        return next((field.type for field in outer.fields if field.encode_name == step), None)
    if isinstance(outer, inspect.DictType):
        return outer.value_type
    return outer.item_type if isinstance(outer, inspect.CollectionType) else None


def _fields(types: Iterable[inspect.Type]) -> list[str]:
    return [field.encode_name for each in types if isinstance(each, inspect.StructType) for field in each.fields]


def _values(model: Any, path: Sequence[str]) -> list[Any]:
    """Return the values of a literal, or the tags of a union of structs."""
    literals = [each for each in _types_at(model, path) if isinstance(each, inspect.LiteralType)]
    if literals:
        return [value for each in literals for value in each.values]
    structs = [each for each in _types_at(model, path[:-1]) if isinstance(each, inspect.StructType)]
    return [each.tag for each in structs if each.tag_field == path[-1]]


# ---- pydantic ----------------------------------------------------------------------------------------------------

UNKNOWN_FIELD: Final = "unknown_field"
"""Type of the error that `shared.api.tasks.Model` raises; its context has the sentence."""
FORM: Final = "<{}>"
"""Tag of a union's member. It is a part of a location, and not of the path in the body."""

KEY: Final = "[key]"
"""Last part of the location of an object's invalid key."""

_QUOTED = re.compile("'([^']*)'")
_EXPECTED: Final = {
    "string_type": "str",
    "int_type": "int",
    "int_from_float": "int",
    "int_parsing": "int",
    "float_type": "float",
    "float_parsing": "float",
    "bool_type": "bool",
    "bool_parsing": "bool",
    "list_type": "array",
    "tuple_type": "array",
    "dict_type": "object",
    "model_type": "object",
    "model_attributes_type": "object",
}
"""Type of an error -> the JSON type that was expected."""
_LIMITS: Final = {
    "greater_than": (">", "gt"),
    "greater_than_equal": (">=", "ge"),
    "less_than": ("<", "lt"),
    "less_than_equal": ("<=", "le"),
}
_LENGTHS: Final = {
    "string_too_short": ("str", ">=", "min_length"),
    "string_too_long": ("str", "<=", "max_length"),
    "too_short": ("array", ">=", "min_length"),
    "too_long": ("array", "<=", "max_length"),
}
_GOT: Final = {str: "str", bool: "bool", int: "int", float: "float", list: "array", dict: "object", type(None): "null"}


def explain_details(details: Mapping[str, Any]) -> str:
    """Return the field and the sentence for one error of pydantic (`ValidationError.errors()`)."""
    where, sentence = list(details["loc"]), _pydantic_sentence(details)
    if where == ["body"]:
        return _of_body(sentence)
    if details["type"] == "missing":
        where = where[:-1]
    elif where and where[-1] == KEY:
        where, sentence = where[:-2], f"a key {sentence}"
    path = ""
    for part in where[1:] if where and where[0] in ("body", *_WHERE) else where:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<"):
            shown = part[:SHOWN_CHARS]
            path += f".{shown}" if path else shown
    if path and where[0] in _WHERE:
        path = _WHERE[where[0]].format(path)
    return f"{path}: {sentence}" if path else sentence


def _missing(where: Sequence[str | int]) -> str:
    if where == ("body",):
        return "the body is empty: send JSON"
    last = where[-1]
    return _length("array", ">=", last + 1) if isinstance(last, int) else _missing_field(last)


def _pydantic_sentence(details: Mapping[str, Any]) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind == "missing":
        return _missing(details["loc"])
    if kind == "string_pattern_mismatch":
        return f"must be {words(context['pattern'])}"
    if kind in ("literal_error", "enum"):
        return _listed(_QUOTED.findall(context["expected"]), repr(details["input"]))
    if kind in _EXPECTED:
        return _type([_EXPECTED[kind]], _GOT.get(type(details["input"]), "this"))
    if kind in _LIMITS:
        sign, name = _LIMITS[kind]
        return _bound(sign, context[name])
    if kind in _LENGTHS:
        what, sign, name = _LENGTHS[kind]
        return _length(what, sign, context[name])
    if kind == "finite_number":
        return "must be a finite number"
    message: str = details["msg"]
    return message.removeprefix("Value error, ")
