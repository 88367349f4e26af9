"""Schemas of actions: one named variant for each kind, with the discriminator `kind`.

Also units, elasticity and quotas (`shared/kinds/formulation`), which tasks, actions and trajectories share. Elasticity
is one object instead of a union: no property distinguishes all of its forms, and Go's clients reject `{}` for a union.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args, get_type_hints

import msgspec

from services.proxy.http.openapi.schemas import REF, Schema, closed, describe_fields, nullable, ref
from shared.kinds.formulation import MOST_AMOUNT, MOST_QUOTAS, MOST_UNITS
from shared.kinds.registry import all_kinds
from shared.kinds.spec import KindSpec
from shared.runtime.patterns import NAME

_SHARE = {"type": "number", "minimum": 0, "maximum": 1}


def _whole(least: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": MOST_UNITS}


COST_SCHEMAS: dict[str, Schema] = {
    "Units": {
        "type": "object",
        "description": "Resource -> units of it.",
        "propertyNames": {"pattern": NAME},
        "additionalProperties": ref("Amount"),
        "examples": [{"cores": 1}, {"cores": [1, 8]}, {"cores": {"any_of": [1, 2, 4, 8]}}],
    },
    "Amount": {
        "description": "A fixed amount, a range, or a set of amounts.",
        "oneOf": [_whole(0), ref("AmountRange"), ref("AmountSet")],
    },
    "AmountRange": {
        "type": "array",
        "description": "The fewest and the most units.",
        "items": _whole(0),
        "minItems": 2,
        "maxItems": 2,
    },
    "AmountSet": closed(("any_of",), any_of={"type": "array", "items": _whole(1), "minItems": 1})
    | {"description": "Allowed amounts. No other amount is granted."},
    "QuotaAmounts": {
        "type": "object",
        "description": "Quota -> amount that an action takes from it.",
        "propertyNames": {"pattern": NAME},
        "additionalProperties": ref("QuotaAmount"),
        "maxProperties": MOST_QUOTAS,
        "examples": [{"search": 1}, {"judge": 1, "judge-tokens": "learned"}],
    },
    "QuotaAmount": {
        "description": "An amount, or `learned`: the mesh reserves what earlier actions have used.",
        "oneOf": [
            {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_AMOUNT},
            {"type": "string", "enum": ["learned"]},
        ],
    },
    "Elasticity": {
        "type": "object",
        "description": "Elasticity: with m units the work takes T / (E(m) * m). Either units -> efficiency E(m), or "
        "a model: `amdahl` with `serial`, or `power` with `exponent`. Empty: more units do not help.",
        "properties": {
            "model": {
                "type": "string",
                "description": "amdahl: E(m) = 1 / (serial * m + 1 - serial); power: m units are m ** exponent times "
                "as fast as one.",
                "enum": ["amdahl", "power"],
            },
            "serial": {**_SHARE, "description": "Part of T that more units do not shorten."},
            "exponent": {**_SHARE, "description": "Exponent of the model `power`."},
        },
        "additionalProperties": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "examples": [{"1": 1.0, "4": 0.8}, {"model": "amdahl", "serial": 0.05}, {"model": "power", "exponent": 0.9}],
    },
}


def kind_schemas() -> dict[str, Schema]:
    """Return the schemas that tasks and actions share: units, elasticity, quotas, and the names of all kinds."""
    names = {"type": "string", "description": "Kind of an action.", "enum": list(all_kinds().plain)}
    return {"ActionKind": names, **COST_SCHEMAS}


def parameter_types(kinds: Mapping[str, KindSpec]) -> list[type[Any]]:
    """Return the types of the kinds' parameters, each after the types of its parts."""
    found: dict[type[Any], None] = {}
    for spec in kinds.values():
        whole = (spec.prepared_by.params,) if spec.prepared_by else ()
        found |= dict.fromkeys((*_structs(get_type_hints(spec.params)), spec.params, *whole))
    return list(found)


def _structs(hints: Mapping[str, Any]) -> Iterator[type[Any]]:
    """Yield the Struct types in the hints of fields, also inside lists, maps and unions."""
    for hint in hints.values():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from _structs(get_type_hints(hint))
            yield hint
        yield from _structs(dict(enumerate(get_args(hint))))  # type: ignore[arg-type]  # only values matter


def struct_schemas(types: Iterable[type[Any]]) -> dict[str, Schema]:
    """Return named schemas of msgspec types and of their parts, with the texts below their fields."""
    types = tuple(types)
    _, schemas = msgspec.json.schema_components(types, ref_template=REF)
    for form in types:
        describe_fields(form, schemas[form.__name__])
    return schemas


def write_costs(schema: Schema) -> None:
    """Refer to the shared schemas in the properties `units`, `elasticity` and `quotas`."""
    forms = {"units": nullable(ref("Units")), "elasticity": ref("Elasticity"), "quotas": ref("QuotaAmounts")}
    for name, shared in forms.items():
        text = schema["properties"][name].get("description", "")
        schema["properties"][name] = {**shared, "description": text}


def variants(action: Schema, kinds: Mapping[str, KindSpec]) -> tuple[Schema, dict[str, Schema]]:
    """Return (union of an action of each kind, its members by name). `action`: the schema of all kinds.

    A kind's parameters are optional if all of them have defaults. Those of a kind that is prepared by another are those
    of both.
    """
    members: dict[str, Schema] = {}
    mapping: dict[str, str] = {}
    for kind, spec in kinds.items():
        params = spec.prepared_by.params if spec.prepared_by else spec.params
        member = copy.deepcopy(action)
        name = f"{params.__name__}Action"
        member["description"] = f"`{kind}`: {params.__doc__}"
        member["properties"]["kind"] = {"type": "string", "enum": [kind]}
        member["properties"]["params"] = ref(params.__name__)
        needed = any(field.required for field in msgspec.structs.fields(params))
        member["required"] = ["kind", "params"] if needed else ["kind"]
        members[name] = member
        mapping[kind] = REF.format(name=name)
    union = {
        "description": action["description"],
        "oneOf": [ref(name) for name in members],
        "discriminator": {"propertyName": "kind", "mapping": mapping},
    }
    return union, members
