"""Changes of the OpenAPI document that break clients generated before.

A client breaks if the mesh rejects what the client sends, or answers with values that the client does not have:

- an operation, a parameter, a body's media type or a status of success is gone, or an operation has another name;
- a property, a member of a union or a named schema is gone, or its type differs;
- of what clients send: a property or parameter becomes required, a value or null is no longer accepted;
- of what clients receive: a property is no longer always there, a value or null is new.

Limits (`maximum`, `pattern` ...), texts and examples are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
Change = Iterator[str]

_METHODS = ("get", "put", "post", "delete", "patch")
_ANY = "any value"


def breaking_changes(old: Json, new: Json) -> list[str]:
    """One line for each change that breaks clients of `old`; empty: none does."""
    return sorted(set(_Comparison(old, new).run()))


class _Comparison:
    def __init__(self, old: Json, new: Json) -> None:
        self.old = old
        self.new = new
        self.seen: set[tuple[str, bool]] = set()

    def run(self) -> Change:
        for path, methods in self.old["paths"].items():
            for method in set(methods) & set(_METHODS):
                found = self.new["paths"].get(path, {}).get(method)
                where = f"{method.upper()} {path}"
                if found is None:
                    yield f"{where} is gone"
                else:
                    yield from self._operation(where, methods[method], found)

    def _operation(self, where: str, old: Json, new: Json) -> Change:
        if old.get("operationId") != new.get("operationId"):
            yield f"{where}: operationId {old.get('operationId')} is now {new.get('operationId')}"
        yield from self._parameters(where, _by_name(old), _by_name(new))
        before, after = old.get("requestBody", {}), new.get("requestBody", {})
        if after.get("required") and not before.get("required"):
            yield f"{where}: a body is required"
        yield from self._contents(f"{where} body", before.get("content", {}), after.get("content", {}), sent=True)
        for status, response in old["responses"].items():
            found = new["responses"].get(status)
            if found is not None:
                contents = response.get("content", {}), found.get("content", {})
                yield from self._contents(f"{where} {status}", *contents, sent=False)
            elif status.startswith("2"):
                yield f"{where}: status {status} is gone"

    def _parameters(self, where: str, old: Json, new: Json) -> Change:
        for key, parameter in old.items():
            if key not in new:
                yield f"{where}: parameter {key} is gone"
            else:
                yield from self._schema(f"{where} {key}", parameter["schema"], new[key]["schema"], sent=True)
        for key, parameter in new.items():
            if parameter.get("required") and not old.get(key, {}).get("required"):
                yield f"{where}: parameter {key} is required"

    def _contents(self, where: str, old: Json, new: Json, *, sent: bool) -> Change:
        for media, content in old.items():
            if media not in new:
                yield f"{where}: {media} is gone"
            else:
                yield from self._schema(where, content.get("schema", {}), new[media].get("schema", {}), sent=sent)

    def _schema(self, where: str, old: Json, new: Json, *, sent: bool) -> Change:
        before, after = _members(old), _members(new)
        if sent:
            after = self._named_members(after) | after
        for key, member in before.items():
            if key in after:
                yield from self._member(where, member, after[key], sent=sent)
            elif sent and _ANY not in after:
                yield f"{where}: {key} is no longer accepted"
        for key in after.keys() - before.keys() if not sent and _ANY not in before else ():
            yield f"{where}: {key} is new in what clients receive"

    def _named_members(self, members: Json) -> Json:
        """Members of the unions among the members that have a name of their own."""
        names = (each["$ref"].rpartition("/")[2] for each in members.values() if "$ref" in each)
        unions = (self.new["components"]["schemas"][name] for name in names)
        return {key: each for union in unions if "oneOf" in union for key, each in _members(union).items()}

    def _member(self, where: str, old: Json, new: Json, *, sent: bool) -> Change:
        """Two schemas of the same name, or of the same type."""
        if "$ref" in old:
            name = old["$ref"].rpartition("/")[2]
            if (name, sent) not in self.seen:
                self.seen.add((name, sent))
                schemas = (document["components"]["schemas"][name] for document in (self.old, self.new))
                yield from self._schema(name, *schemas, sent=sent)
            return
        yield from _values(where, old, new, sent=sent)
        yield from self._object(where, old, new, sent=sent)
        for key in ("items", "additionalProperties"):
            if isinstance(old.get(key), dict) and isinstance(new.get(key), dict):
                yield from self._schema(f"{where}[]", old[key], new[key], sent=sent)

    def _object(self, where: str, old: Json, new: Json, *, sent: bool) -> Change:
        before, after = old.get("properties", {}), new.get("properties", {})
        needed, need = set(old.get("required", ())), set(new.get("required", ()))
        for name, schema in before.items():
            if name not in after:
                yield f"{where}.{name} is gone"
                continue
            yield from self._schema(f"{where}.{name}", schema, after[name], sent=sent)
            if not sent and name in needed - need:
                yield f"{where}.{name} is no longer always there"
        for name in need - needed if sent else ():
            yield f"{where}.{name} is required"


def _values(where: str, old: Json, new: Json, *, sent: bool) -> Change:
    before, after = old.get("enum"), new.get("enum")
    if sent and after is not None:
        for value in before if before is not None else ("any other value",):
            if value not in after:
                yield f"{where}: {value} is no longer accepted"
    if not sent and before is not None:
        for value in after if after is not None else ("any other value",):
            if value not in before:
                yield f"{where}: {value} is new in what clients receive"


def _by_name(operation: Json) -> Json:
    """Header names have no case."""
    return {f"{each['in']} {each['name'].lower()}": each for each in operation.get("parameters", ())}


def _members(schema: Json) -> Json:
    """Members of a union by the name of their schema or by their type; what is no union is its only member."""
    members = [*schema.get("oneOf", ()), *schema.get("anyOf", ())] or [schema]
    return {str(each.get("$ref", each.get("type", _ANY))).rpartition("/")[2]: each for each in members}
