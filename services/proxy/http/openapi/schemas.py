r"""Repair of JSON schemas for client generators. Pure functions over schemas as msgspec and pydantic write them.

Every rule keeps the set of valid bodies:

- `title` repeats the name, and generators name inline types by it: dropped.
- A default of null, an empty list or an empty object only makes the field optional: dropped.
- `const` becomes an enum of one value, and every enum has its type.
- A union with the schema of any value is that schema; an array without `items` has any.
- Numbers are `double` and unbounded integers `int64`: without it Go and Java take 32 bits.
- `(?!\n)` guards Python's `$`, which also matches before a last newline. In JSON Schema it does not.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

REF = "#/components/schemas/{name}"

_MOST_INT32 = 2**31 - 1
_MAPS = ("properties", "patternProperties", "$defs")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONES = ("items", "additionalProperties", "propertyNames", "not")
_TYPES: tuple[tuple[type, str], ...] = ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"))


def ref(name: str) -> Schema:
    """Return a reference to a named schema."""
    return {"$ref": REF.format(name=name)}


def nullable(schema: Schema) -> Schema:
    """Return a schema that also accepts null."""
    return {"anyOf": [schema, {"type": "null"}]}


def closed(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """Return the schema of an object without other properties."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def object_of(**properties: Schema) -> Schema:
    """Return the schema of an object with these required properties."""
    return {"type": "object", "required": list(properties), "properties": properties}


def repair(schema: Schema) -> Schema:
    """Return an equivalent schema for generators. `schema` does not change."""
    done = {key: _repaired(key, value) for key, value in schema.items()}
    if isinstance(done.get("title"), str):
        del done["title"]
    if done.get("default", ...) in (None, [], (), {}):
        del done["default"]
    if "const" in done:
        done["enum"] = [done.pop("const")]
    if "enum" in done and "type" not in done:
        done["type"] = next(name for form, name in _TYPES if isinstance(done["enum"][0], form))
    if not done.get("required", True):
        del done["required"]
    if any(branch == {} for branch in done.get("anyOf", ())):
        del done["anyOf"]
    return _sized(done)


def _repaired(key: str, value: Any) -> Any:
    if key in _MAPS:
        return {name: repair(each) for name, each in value.items()}
    if key in _LISTS:
        return [repair(each) for each in value]
    if key in _ONES and isinstance(value, dict):
        return repair(value)
    return value.replace(r"(?!\n)", "") if key == "pattern" else value


def _sized(schema: Schema) -> Schema:
    match schema.get("type"):
        case "array":
            schema.setdefault("items", {})
        case "number":
            schema.setdefault("format", "double")
        case "integer":
            for bound in ("minimum", "maximum", "exclusiveMinimum"):
                if bound in schema:
                    schema[bound] = int(schema[bound])
            if schema.get("maximum", _MOST_INT32 + 1) > _MOST_INT32 and "enum" not in schema:
                schema.setdefault("format", "int64")
    return schema


def describe_fields(form: type[Any], schema: Schema) -> None:
    """Write the texts below a msgspec type's fields into its schema, as pydantic does for its own."""
    for base in reversed(form.__mro__):
        if base.__module__.startswith(("shared.", "services.")):
            for name, text in _field_texts(base):
                if name in schema.get("properties", {}):
                    schema["properties"][name].setdefault("description", text)


def _field_texts(form: type[Any]) -> Iterator[tuple[str, str]]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(form))).body
    assert isinstance(definition, ast.ClassDef)
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            text = below.value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield field.target.id, inspect.cleandoc(text.value)
