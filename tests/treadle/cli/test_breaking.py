"""Changes that break generated clients, and changes that do not."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle.cli.breaking import breaking_changes
from treadle.testing.servers import clean_environment

Json = dict[str, Any]
TREADLE = Path(sys.executable).with_name("treadle")


def document() -> Json:
    thing = {
        "type": "object",
        "required": ["id", "state"],
        "properties": {
            "id": {"type": "string"},
            "state": {"type": "string", "enum": ["open", "ended"]},
            "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "parts": {"type": "array", "items": {"$ref": "#/components/schemas/Thing"}},
        },
    }
    order = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "mode": {"type": "string", "enum": ["fast", "slow"]},
            "amount": {"oneOf": [{"type": "integer"}, {"$ref": "#/components/schemas/Range"}]},
        },
    }
    post = {
        "operationId": "post_thing",
        "parameters": [{"name": "Wait", "in": "query", "schema": {"type": "number"}}],
        "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Order"}}}},
        "responses": {
            "200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
            "422": {"content": {}},
        },
    }
    schemas = {
        "Thing": thing,
        "Order": order,
        "Range": {"type": "array", "items": {"type": "integer"}},
        "Names": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    }
    return {"paths": {"/things": {"post": post}}, "components": {"schemas": schemas}}


def changed(change: Callable[[Json, Json, Json], object]) -> list[str]:
    new = document()
    schemas = new["components"]["schemas"]
    change(new["paths"]["/things"]["post"], schemas["Thing"], schemas["Order"])
    return breaking_changes(document(), new)


BREAKS: dict[str, Callable[[Json, Json, Json], object]] = {
    "POST /things: operationId post_thing is now make": lambda post, thing, order: post.update(operationId="make"),
    "POST /things: parameter query wait is gone": lambda post, thing, order: post["parameters"].clear(),
    "POST /things: parameter query wait is required": lambda post, thing, order: post["parameters"][0].update(
        required=True
    ),
    "POST /things query wait: number is no longer accepted": lambda post, thing, order: post["parameters"][0].update(
        schema={"type": "integer"}
    ),
    "POST /things: a body is required": lambda post, thing, order: post["requestBody"].update(required=True),
    "POST /things body: application/json is gone": lambda post, thing, order: post["requestBody"]["content"].clear(),
    "POST /things: status 200 is gone": lambda post, thing, order: post["responses"].pop("200"),
    "Thing.size is gone": lambda post, thing, order: thing["properties"].pop("size"),
    "Thing.id is no longer always there": lambda post, thing, order: thing["required"].remove("id"),
    "Thing.id: null is new in what clients receive": lambda post, thing, order: thing["properties"].update(
        id={"anyOf": [{"type": "string"}, {"type": "null"}]}
    ),
    "Thing.state: lost is new in what clients receive": lambda post, thing, order: thing["properties"]["state"][
        "enum"
    ].append("lost"),
    "Thing.parts: Range is new in what clients receive": lambda post, thing, order: thing["properties"].update(
        parts={"$ref": "#/components/schemas/Range"}
    ),
    "Order.mode is required": lambda post, thing, order: order["required"].append("mode"),
    "Order.mode: slow is no longer accepted": lambda post, thing, order: order["properties"]["mode"]["enum"].remove(
        "slow"
    ),
    "Order.amount: Range is no longer accepted": lambda post, thing, order: order["properties"]["amount"][
        "oneOf"
    ].pop(),
    "Order.amount: integer is no longer accepted": lambda post, thing, order: order["properties"].update(
        amount={"$ref": "#/components/schemas/Names"}
    ),
    "Order.name is gone": lambda post, thing, order: order["properties"].pop("name"),
}


@pytest.mark.parametrize("line", BREAKS)
def test_breaking_changes_are_named(line: str) -> None:
    assert line in changed(BREAKS[line])


HARMLESS: dict[str, Callable[[Json, Json, Json], object]] = {
    "nothing": lambda post, thing, order: None,
    "a new property": lambda post, thing, order: thing["properties"].update(more={"type": "string"}),
    "a new option": lambda post, thing, order: order["properties"].update(more={"type": "string"}),
    "a new accepted value": lambda post, thing, order: order["properties"]["mode"]["enum"].append("steady"),
    "another accepted type": lambda post, thing, order: order["properties"]["amount"]["oneOf"].append(
        {"type": "string"}
    ),
    "a named union with the accepted type": lambda post, thing, order: order["properties"].update(
        name={"$ref": "#/components/schemas/Names"}
    ),
    "any accepted value": lambda post, thing, order: order["properties"].update(mode={}),
    "a value no longer sent to clients": lambda post, thing, order: thing["properties"]["state"]["enum"].pop(),
    "always there": lambda post, thing, order: thing["required"].append("parts"),
    "no longer required": lambda post, thing, order: order["required"].clear(),
    "an error gone": lambda post, thing, order: post["responses"].pop("422"),
    "texts": lambda post, thing, order: thing.update(description="Better words."),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_changes_are_not_named(name: str) -> None:
    assert changed(HARMLESS[name]) == []


def test_an_operation_that_is_gone_is_named_and_a_new_one_is_not() -> None:
    less, more = document(), document()
    less["paths"]["/things"] = {}
    more["paths"]["/others"] = copy.deepcopy(more["paths"]["/things"])
    assert breaking_changes(document(), less) == ["POST /things is gone"]
    assert breaking_changes(document(), more) == []


def since(file: Path) -> tuple[int, str]:
    command = [str(TREADLE), "openapi", "--since", str(file)]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_command_compares_with_an_older_document(tmp_path: Path) -> None:
    older = json.loads(Path("docs/openapi.json").read_text())
    file = tmp_path / "older.json"
    file.write_text(json.dumps(older))
    assert since(file) == (0, f"no client of {file} breaks\n")
    older["paths"]["/v1/gone"] = {"get": {"responses": {}}}
    file.write_text(json.dumps(older))
    assert since(file) == (1, "GET /v1/gone is gone\n")
    file.write_text("[]")
    status, text = since(file)
    assert status == 2
    assert "is no OpenAPI document" in text
