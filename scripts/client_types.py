"""Generate the types of the Python client from docs/openapi.json (ADR 0044).

    .venv/bin/python -m scripts.client_types

writes treadle/client/requests.py (bodies that the client sends) and treadle/client/answers.py. The rules:

- An object with named properties is a frozen struct. Other objects, lists and unions are aliases.
- A union with a discriminator is one struct of the properties that all its members have. Properties that differ become
  `Mapping[str, Any]`, and the discriminator is one of its values.
- An optional property has the document's default; else None if null is allowed; else the empty list, mapping or struct;
  else it is unset. A property at its default is not sent.
- Bodies accept any Sequence and Mapping. Answers have lists and dicts.
- An enum is `Literal[...]` in bodies and `Literal[...] | str` in answers, because a newer mesh may answer other values.
  An enum that both have is a `Literal` for type checkers, and any text at run time.
- Texts are the descriptions of the document.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]

ROOT: Final = Path(__file__).parents[1]
DOCUMENT: Final = ROOT / "docs" / "openapi.json"
CLIENT: Final = ROOT / "treadle" / "client"

SENT: Final = (
    "Task",
    "BatchOpening",
    "ProgressReport",
    "RewardRequest",
    "ActionRequest",
    "ParkRequest",
    "TrajectoryRequest",
    "TrajectoryChange",
    "TrajectoryAction",
    "TenantWeight",
    "Quota",
    "AcquireRequest",
    "LeaseFence",
    "LeaseSettlement",
)
"""Schemas of the bodies that the client sends."""
RECEIVED: Final = (
    "TaskView",
    "BatchView",
    "ProgressReceipt",
    "NodeList",
    "Answer",
    "ResultLine",
    "BulkReceipt",
    "TrajectoryView",
    "TrainingRow",
    "RecordedCall",
    "TenantList",
    "QuotaList",
    "ModelServiceList",
    "QuotaLease",
    "LeaseView",
)
"""Schemas of the answers that the client reads."""
BASES: Final = {"TaskView": "Task", "ResultLine": "Answer"}
"""Schemas that have all properties of another one: its subclasses."""
RENAMED: Final = {"ResultLine": "Result"}
"""Schema -> name of its class: a line is one of the ways that a result travels."""
ENUMS: Final = {("Answer", "ended"): "Ending"}
"""Properties of answers whose values have a name."""

WIDTH: Final = 120
PLAIN: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
WIDER: Final = "if not TYPE_CHECKING:  # a newer mesh may answer others\n    {name} = {wider}\n"
"""Run-time type of an enum, or of values that contain one, that bodies and answers have."""
HEADER: Final = '''"""{title} Generated from docs/openapi.json by scripts/client_types.py: do not edit.

{law}
"""

from __future__ import annotations

{imports}

import msgspec
'''


class Types:
    """Source text of the classes and aliases of one document.

    A schema is defined once, after those it refers to.
    """

    def __init__(self, document: Json) -> None:
        self._schemas: dict[str, Json] = document["components"]["schemas"]
        self._union_members = {
            _named(member)
            for schema in self._schemas.values()
            if "discriminator" not in schema
            for member in schema.get("oneOf", ())
        }
        self._sent = True
        self._received: set[str] = set()
        for name in RECEIVED:
            self._reach(name)
        self._done: dict[str, str] = {}

    def bodies(self) -> str:
        """Return the module of bodies."""
        self._sent = True
        law = "A field at its default is not sent, so that the mesh's own default holds."
        imports = "from collections.abc import Mapping, Sequence\nfrom typing import TYPE_CHECKING, Any, Literal"
        return HEADER.format(title="Bodies of requests.", law=law, imports=imports) + self._module(SENT)

    def answers(self) -> str:
        """Return the module of answers. Call it after `bodies`: answers use their types."""
        self._sent, sent = False, sorted(self._done)
        text = self._module(RECEIVED)
        law = "Fields that this release does not know are ignored. Times are Unix seconds."
        used = sorted({name for name in sent for line in text.splitlines() if _uses(line, name)})
        imports = "from typing import Any, Literal"
        header = HEADER.format(title="Answers of the mesh.", law=law, imports=imports)
        return f"{header}\nfrom treadle.client.requests import {', '.join(used)}\n{text}"

    def _reach(self, name: str) -> None:
        """Add a schema, and those it refers to, to the schemas of answers."""
        if name not in self._received:
            self._received.add(name)
            for each in _references(self._schemas.get(name)):
                self._reach(each)

    def _module(self, roots: tuple[str, ...]) -> str:
        before = set(self._done)
        for name in roots:
            self._define(name)
        return "".join(text for name, text in self._done.items() if name not in before)

    def _define(self, name: str) -> None:
        """Add the text of a schema after the texts of those it refers to."""
        if name in self._done:
            return
        schema = self._schemas[name]
        if "discriminator" in schema:
            schema = self._merged(name, schema)
        text = self._struct(name, schema) if self._is_struct(name) else self._alias(name, self._type(schema), schema)
        if self._sent and name in self._received and not self._is_struct(name):
            if "enum" in schema:
                text += WIDER.format(name=name, wider=f"{name} | str")
            elif "Literal[" in (values := self._type(schema)):
                text += WIDER.format(name=name, wider=re.sub(r"Literal\[.*?\]", "str", values))
        self._done[name] = text

    def _merged(self, name: str, union: Json) -> Json:
        """The object of the properties that all members of a union have."""
        members = [self._schemas[_named(member)] for member in union["oneOf"]]
        key, first = union["discriminator"]["propertyName"], members[0]
        properties: Json = {}
        for field, schema in first["properties"].items():
            if all(member["properties"].get(field) == schema for member in members):
                properties[field] = schema
            elif all(field in member["properties"] for member in members):
                properties[field] = {"type": "object"}
        properties[key] = self._values_of(name, sorted(union["discriminator"]["mapping"]))
        required = [field for field in first["required"] if all(field in member["required"] for member in members)]
        return {**union, "properties": properties, "required": required}

    def _values_of(self, union: str, values: list[str]) -> Json:
        """Schema of a discriminator: the named enum with its values, else a new one."""
        for name, schema in self._schemas.items():
            if sorted(schema.get("enum", ())) == values:
                return {"$ref": f"#/components/schemas/{name}"}
        name = f"{union}Kind"
        self._done[name] = self._alias(name, self._enum(values), {"description": f"Kind of a {union}: what it runs."})
        return {"$ref": f"#/components/schemas/{name}"}

    def _is_struct(self, name: str) -> bool:
        schema = self._schemas.get(name, {})
        if "discriminator" in schema:
            return True
        return "properties" in schema and not schema.get("additionalProperties") and name not in self._union_members

    def _struct(self, name: str, schema: Json) -> str:
        properties, base = dict(schema["properties"]), BASES.get(name)
        if base is not None:
            self._define(base)
            for field, inherited in self._schemas[base]["properties"].items():
                if properties.pop(field, None) != inherited:
                    raise ValueError(f"{name}.{field} is not that of {base}: {name} cannot be its subclass")
        required = [field for field in schema.get("required", ()) if field in properties]
        ordered = [*required, *(field for field in properties if field not in required)]
        fields = [self._field(name, field, properties[field], field in required) for field in ordered]
        parent = RENAMED.get(base, base) if base else "msgspec.Struct"
        options = "frozen=True, kw_only=True, omit_defaults=True"
        head = f"\n\nclass {RENAMED.get(name, name)}({parent}, {options}):\n"
        return head + _docstring(schema["description"], "    ") + "\n" + "".join(fields)

    def _field(self, owner: str, name: str, schema: Json, required: bool) -> str:
        named = ENUMS.get((owner, name))
        if named and named not in self._done:
            values = next(member for member in _members(schema) if "enum" in member)["enum"]
            self._done[named] = self._alias(named, _literal(values), schema)
        kind = f"{named} | str | None" if named else self._type(schema)
        text = f"    {name}: {kind}\n" if required else f"    {name}: {self._optional(schema, kind)}\n"
        return text + (_docstring(schema["description"], "    ") if "description" in schema else "")

    def _optional(self, schema: Json, kind: str) -> str:
        if "default" in schema:
            return f"{kind} = {schema['default']!r}"
        if kind == "Any" or kind.endswith("| None"):
            return f"{kind} = None"
        target = self._schemas.get(_named(schema), schema) if "$ref" in schema else schema
        if "$ref" in schema and self._is_struct(_named(schema)) and not target.get("required"):
            return f"{kind} = {kind}()"
        if target.get("type") in ("object", "array"):
            return f"{kind} = {'{}' if target['type'] == 'object' else '[]'}"
        return f"{kind} | msgspec.UnsetType = msgspec.UNSET"

    def _type(self, schema: Json) -> str:
        """Annotation of a schema; the named schemas in it are defined first."""
        if "$ref" in schema:
            name = _named(schema)
            if name in self._schemas:
                self._define(name)
            return RENAMED.get(name, name)
        if members := _members(schema):
            return " | ".join(self._type(member) for member in members)
        if "enum" in schema:
            return self._enum(schema["enum"])
        if schema.get("type") == "array":
            return f"{'Sequence' if self._sent else 'list'}[{self._type(schema['items'])}]"
        if schema.get("type") == "object":
            return f"{'Mapping' if self._sent else 'dict'}[str, {self._values(schema)}]"
        return PLAIN[schema["type"]] if "type" in schema else "Any"

    def _enum(self, values: list[str]) -> str:
        return _literal(values) if self._sent else f"{_literal(values)} | str"

    def _values(self, schema: Json) -> str:
        """Annotation of a mapping's values."""
        rest = schema.get("additionalProperties", True)
        open_ended = [rest] if isinstance(rest, Mapping) else []
        found = [*open_ended, *schema.get("properties", {}).values()]
        kinds = [self._type(dict(each) if "enum" not in each else {"type": each["type"]}) for each in found]
        return " | ".join(dict.fromkeys(kinds)) or "Any"

    def _alias(self, name: str, kind: str, schema: Json) -> str:
        return f"\n{name} = {kind}\n{_docstring(schema['description'], '')}"


def _uses(line: str, name: str) -> bool:
    """Return whether a line of source text has an annotation or a base class of this name."""
    return name in line.replace("[", " ").replace("]", " ").replace("(", " ").replace(",", " ").split()


def _references(node: Any) -> Iterator[str]:
    """Yield the names of the schemas that a part of the document refers to."""
    if isinstance(node, Mapping) and isinstance(node.get("$ref"), str):
        yield _named(node)
    if isinstance(node, Mapping | list):
        for each in node.values() if isinstance(node, Mapping) else node:
            yield from _references(each)


def _named(schema: Mapping[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _members(schema: Json) -> list[Json]:
    return [*schema.get("anyOf", ()), *schema.get("oneOf", ())]


def _literal(values: list[str]) -> str:
    return f"Literal[{', '.join(map(repr, values))}]"


def _docstring(text: str, indent: str) -> str:
    words = " ".join(text.split()).replace("\\", "\\\\")
    lines = textwrap.wrap(f'"""{words}"""', WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
    return textwrap.indent("\n".join(lines), indent) + "\n"


def formatted(source: str) -> str:
    """Return source text as ruff formats it."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(CLIENT / "answers.py"), "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def generated(document: Json) -> Iterator[tuple[Path, str]]:
    """Yield both files with their text."""
    types = Types(document)
    yield CLIENT / "requests.py", formatted(types.bodies())
    yield CLIENT / "answers.py", formatted(types.answers())


def main() -> None:
    for path, text in generated(json.loads(DOCUMENT.read_text())):
        path.write_text(text)


if __name__ == "__main__":
    main()
