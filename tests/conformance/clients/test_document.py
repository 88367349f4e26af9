"""docs/openapi.json is what `treadle openapi` prints, and keeps to what generators can use."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from treadle.cli.breaking import breaking_changes
from treadle.testing.servers import clean_environment

Json = dict[str, Any]
TREADLE = Path(sys.executable).with_name("treadle")
COPY = Path("docs/openapi.json")


@pytest.fixture(scope="module")
def document() -> Json:
    loaded: Json = json.loads(COPY.read_text())
    return loaded


def operations(document: Json) -> Iterator[tuple[str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


def parts(node: Any, where: str = "") -> Iterator[tuple[str, Json]]:
    """Every object of the document but the values of examples, with its place."""
    if isinstance(node, dict):
        yield where, node
        for key, value in node.items():
            if key not in ("examples", "example"):
                yield from parts(value, f"{where}/{key}")
    elif isinstance(node, list):
        for position, value in enumerate(node):
            yield from parts(value, f"{where}/{position}")


def test_the_copy_is_what_the_command_prints(document: Json) -> None:
    command = [str(TREADLE), "openapi"]
    printed = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=True)
    broken = "\n".join(breaking_changes(document, json.loads(printed.stdout))) or "nothing"
    assert COPY.read_text() == printed.stdout, (
        "the document has changed: run `treadle openapi --out docs/openapi.json`, and name in CHANGELOG.md's upgrade "
        f"notes what breaks clients that were generated before: {broken}"
    )


def test_every_operation_has_a_name_of_its_own_a_tag_and_texts(document: Json) -> None:
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() and name == name.lower() for name in names)
    tags = {tag["name"] for tag in document["tags"]}
    for where, operation in operations(document):
        assert len(operation["tags"]) == 1, where
        assert set(operation["tags"]) <= tags, where
        assert operation["summary"], where
        assert operation["description"], where
        assert all(each["description"] for each in operation.get("parameters", ())), where


def test_every_schema_has_a_text_and_unions_are_named(document: Json) -> None:
    for name, schema in document["components"]["schemas"].items():
        assert schema["description"], name
    for where, part in parts(document):
        if isinstance(part.get("oneOf"), list):
            assert where.count("/") == 3, f"{where}: an inline union"
            assert "default" not in part, where
            named = [
                document["components"]["schemas"][each["$ref"].rpartition("/")[2]]
                for each in part["oneOf"]
                if "$ref" in each
            ]
            objects = [each for each in named if each.get("type") != "array"]
            assert len(objects) < 2 or "discriminator" in part or where.endswith("/Amount"), where


def test_arrays_enums_and_defaults_suit_generators(document: Json) -> None:
    for where, part in parts(document):
        if part.get("type") == "array":
            assert "items" in part, where
        if isinstance(values := part.get("enum"), list):
            assert "type" in part, where
            assert len({str(value).lower() for value in values}) == len(values), where
        assert "const" not in part or where.endswith("/properties"), where
        if not where.endswith("/properties"):
            assert not isinstance(part.get("default"), dict | list), where


def test_a_discriminator_names_every_member(document: Json) -> None:
    unions = [part for _, part in parts(document) if isinstance(part.get("discriminator"), dict)]
    assert len(unions) == 3
    schemas = document["components"]["schemas"]
    for union in unions:
        mapping = union["discriminator"]["mapping"]
        assert set(mapping.values()) == {each["$ref"] for each in union["oneOf"]}
        for value, target in mapping.items():
            kind = schemas[target.rpartition("/")[2]]["properties"][union["discriminator"]["propertyName"]]
            assert kind == {"type": "string", "enum": [value]}


def test_examples_are_valid_and_every_json_body_has_one(document: Json) -> None:
    for where, operation in operations(document):
        for media, content in operation.get("requestBody", {}).get("content", {}).items():
            values = [each["value"] for each in content.get("examples", {}).values()]
            assert values or media == "multipart/form-data", where
            for value in values:
                jsonschema_rs.validate({**document, **content["schema"]}, value)
        for response in operation["responses"].values():
            for content in response.get("content", {}).values():
                if "example" in content:
                    jsonschema_rs.validate({**document, **content["schema"]}, content["example"])
    for name, schema in document["components"]["schemas"].items():
        for value in schema.get("examples", ()):
            jsonschema_rs.validate({**document, "$ref": f"#/components/schemas/{name}"}, value)
