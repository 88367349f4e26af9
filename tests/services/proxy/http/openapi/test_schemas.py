"""Repair of schemas for generators."""

from __future__ import annotations

from typing import Any

import pytest

from services.proxy.http.openapi.schemas import describe_fields, repair
from shared.api.requests import Answer


@pytest.mark.parametrize(
    ("schema", "repaired"),
    [
        ({"title": "Id", "type": "string"}, {"type": "string"}),
        ({"type": "object", "default": {}, "required": []}, {"type": "object"}),
        ({"type": "boolean", "default": False}, {"type": "boolean", "default": False}),
        ({"const": "bash"}, {"type": "string", "enum": ["bash"]}),
        ({"enum": [1, 2]}, {"type": "integer", "enum": [1, 2]}),
        ({"anyOf": [{}, {"type": "null"}], "description": "any"}, {"description": "any"}),
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": "number"}, {"type": "number", "format": "double"}),
        ({"type": "integer"}, {"type": "integer", "format": "int64"}),
        ({"type": "integer", "maximum": 9.0}, {"type": "integer", "maximum": 9}),
        ({"type": "string", "pattern": r"^a(?!\n)$"}, {"type": "string", "pattern": "^a$"}),
        (
            {"type": "object", "properties": {"title": {"title": "Title", "type": "string", "default": None}}},
            {"type": "object", "properties": {"title": {"type": "string"}}},
        ),
        ({"oneOf": [{"const": "x"}], "items": {"enum": ["y"]}},
         {"oneOf": [{"type": "string", "enum": ["x"]}], "items": {"type": "string", "enum": ["y"]}}),
    ],
)  # fmt: skip
def test_a_schema_is_repaired_and_the_original_kept(schema: dict[str, Any], repaired: dict[str, Any]) -> None:
    before = repr(schema)
    assert repair(schema) == repaired
    assert repair(repaired) == repaired
    assert repr(schema) == before


def test_texts_below_fields_become_descriptions() -> None:
    schema: dict[str, Any] = {"properties": {"id": {}, "mask": {}, "index": {"description": "its own"}}}
    describe_fields(Answer, schema)
    assert schema["properties"] == {
        "id": {},
        "mask": {
            "description": "True: an infrastructure failure or a cancellation. "
            "Leave the sample out instead of scoring it."
        },
        "index": {"description": "its own"},
    }
