"""Rules of the generator of the client's types, on small documents."""

from __future__ import annotations

import sys
import types
from typing import Any

import msgspec
import pytest

from scripts import client_types
from scripts.client_types import Types

OBJECT = {"type": "object", "description": "One of them."}
TEXT = {"type": "string"}
NULL = {"type": "null"}


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Function from schemas to the module of their bodies; the first schema is the root."""

    def generate(**schemas: Any) -> types.ModuleType:
        monkeypatch.setattr(client_types, "SENT", tuple(schemas)[:1])
        named = {name: {**OBJECT, **schema} for name, schema in schemas.items()}
        source = Types({"components": {"schemas": named}}).bodies()
        module = types.ModuleType("generated")
        monkeypatch.setitem(sys.modules, "generated", module)  # where msgspec looks annotations up
        exec(source, vars(module))  # the text that the generator would write
        return module

    return generate


def test_defaults_are_the_documents_or_none_or_empty_or_unset(bodies: Any) -> None:
    module = bodies(
        Root={
            "properties": {
                "count": {"type": "integer", "default": 3},
                "name": {"anyOf": [TEXT, NULL]},
                "lines": {"type": "array", "items": TEXT},
                "env": {"type": "object", "additionalProperties": TEXT},
                "place": ref("Place"),
                "batch": TEXT,
            }
        },
        Place={"properties": {"room": {**TEXT, "default": "hall"}}},
    )
    root = module.Root()
    assert (root.count, root.name, root.lines, root.env, root.batch) == (3, None, [], {}, msgspec.UNSET)
    assert root.place == module.Place(room="hall")
    assert msgspec.json.encode(root) == b"{}"
    with pytest.raises(AttributeError, match="immutable"):
        root.count = 4


def test_required_properties_are_required_and_unknown_ones_ignored(bodies: Any) -> None:
    root = bodies(Root={"properties": {"b": TEXT, "a": TEXT}, "required": ["b"]}).Root
    assert msgspec.json.decode(b'{"b": "x", "new": 1}', type=root) == root(b="x")
    with pytest.raises(msgspec.ValidationError, match="missing required field `b`"):
        msgspec.json.decode(b'{"a": "x"}', type=root)


def test_a_union_with_a_discriminator_is_one_struct(bodies: Any) -> None:
    def member(kind: str, field: dict[str, Any]) -> dict[str, Any]:
        own = {"kind": {"enum": [kind], "type": "string"}, "params": field, "limit": {"type": "number", "default": 1.0}}
        return {"properties": own, "required": ["kind", "params"]}

    mapping = {"cat": ref("Cat")["$ref"], "dog": ref("Dog")["$ref"]}
    module = bodies(
        Pet={"oneOf": [ref("Cat"), ref("Dog")], "discriminator": {"propertyName": "kind", "mapping": mapping}},
        Cat=member("cat", {"type": "object", "properties": {"mouse": TEXT}}),
        Dog=member("dog", {"type": "object", "properties": {"bone": TEXT}}),
    )
    dog = msgspec.json.decode(b'{"kind": "dog", "params": {"bone": "old"}}', type=module.Pet)
    assert (dog.kind, dog.params, dog.limit) == ("dog", {"bone": "old"}, 1.0)
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'cow'"):
        msgspec.json.decode(b'{"kind": "cow", "params": {}}', type=module.Pet)


def test_a_union_without_a_discriminator_is_an_alias(bodies: Any) -> None:
    module = bodies(
        Root={"properties": {"amount": ref("Amount")}, "required": ["amount"]},
        Amount={"oneOf": [{"type": "integer"}, ref("Set")]},
        Set={"properties": {"any_of": {"type": "array", "items": {"type": "integer"}}}, "required": ["any_of"]},
    )
    for amount in (2, {"any_of": [1, 2]}):
        assert msgspec.json.decode(msgspec.json.encode({"amount": amount}), type=module.Root).amount == amount


def test_answers_accept_values_that_the_document_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_types, "SENT", ("Body", "Own"))
    monkeypatch.setattr(client_types, "RECEIVED", ("Reply",))
    properties = {"kind": ref("Kind")}
    schemas = {
        "Body": {**OBJECT, "properties": properties, "required": ["kind"]},
        "Own": {**OBJECT, "properties": {"color": ref("Color")}, "required": ["color"]},
        "Reply": {
            **OBJECT,
            "properties": {"body": ref("Body"), "state": {**TEXT, "enum": ["open"]}},
            "required": ["body", "state"],
        },
        "Kind": {**TEXT, "enum": ["cat"], "description": "Kind of it."},
        "Color": {**TEXT, "enum": ["red"], "description": "Color of it."},
    }
    generator = Types({"components": {"schemas": schemas}})
    bodies, answers = generator.bodies(), generator.answers()
    assert "state: Literal['open'] | str\n" in answers
    assert "    kind: Kind\n" in bodies
    sent: dict[str, Any] = {}
    exec(bodies, sent)  # the text that the generator would write
    assert msgspec.convert("cow", sent["Kind"]) == "cow"
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'blue'"):
        msgspec.convert("blue", sent["Color"])


def test_texts_are_docstrings(bodies: Any) -> None:
    schema = {"description": "A root.\nOf a tree.", "properties": {"a": TEXT}, "required": ["a"]}
    assert bodies(Root=schema).Root.__doc__ == "A root. Of a tree."


def test_a_subclass_must_have_the_properties_of_its_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_types, "SENT", ("Base",))
    monkeypatch.setattr(client_types, "RECEIVED", ("Derived",))
    monkeypatch.setattr(client_types, "BASES", {"Derived": "Base"})
    base = {**OBJECT, "properties": {"a": TEXT}, "required": ["a"]}
    other = {**OBJECT, "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    generator = Types({"components": {"schemas": {"Base": base, "Derived": other}}})
    generator.bodies()
    with pytest.raises(ValueError, match=r"Derived\.a is not that of Base"):
        generator.answers()
