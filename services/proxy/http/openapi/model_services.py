"""Declarations of model services in the OpenAPI document: one object, because generators have no open unions."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from services.proxy.http.openapi.kinds import struct_schemas
from services.proxy.http.openapi.schemas import Schema, ref
from shared.model_services.entries import EngineCanary, MemoryNeed, ServiceEntry
from shared.model_services.references import ServiceReference

_BY_DEGREE = {
    "command": ("ServiceCommand", "A command, or degree -> command.", "CommandsByDegree"),
    "url": ("ServiceAddress", "An address, or degree -> address.", "AddressesByDegree"),
    "first_gpu": ("ServiceFirstGpu", "A number, or degree -> number.", "FirstGpusByDegree"),
}
_MEMORY_BY_DEGREE = {
    "awake": ("AwakeMemory", "GB, or degree -> GB.", "AwakeMemoryByDegree"),
    "asleep": ("AsleepMemory", "GB, or degree -> GB.", "AsleepMemoryByDegree"),
    "host": ("HostMemory", "GB, or degree -> GB.", "HostMemoryByDegree"),
}


def model_service_schemas() -> dict[str, Schema]:
    """Return the schemas of a declaration: the fields of a whole entry, and `entry` of a reference."""
    schemas = struct_schemas((EngineCanary, MemoryNeed, ServiceEntry, ServiceReference))
    whole, reference = schemas.pop("ServiceEntry"), schemas.pop("ServiceReference")
    schemas.pop("CanaryTexts", None)
    fields: dict[str, Schema] = copy.deepcopy(whole["properties"])
    memory: dict[str, Schema] = schemas["MemoryNeed"]["properties"]
    shared = {**_named_unions(fields, _BY_DEGREE), **_named_unions(memory, _MEMORY_BY_DEGREE)}
    memory["host"] = {"anyOf": [ref("HostMemory"), {"type": "null"}], "description": memory["host"]["description"]}
    schemas["EngineCanary"]["properties"]["expect"] = ref("CanaryAnswer")
    shared["CanaryAnswer"] = {
        "description": "Known answer: a text, a number, or numbers.",
        "oneOf": [{"type": "string"}, {"type": "number"}, ref("CanaryNumbers")],
    }
    shared["CanaryNumbers"] = {"type": "array", "description": "Known numbers.", "items": {"type": "number"}}
    declaration: Schema = {
        "type": "object",
        "description": "Declaration of a model service. With `entry` it refers to an entry of the operator's file, and "
        "may have `concurrency`, `priority`, `min_residency_s`, `degrees`, and `prompt` and `expect` of a `canary`. "
        "Without it, it is a whole entry, which needs `backend`, `model` and `memory_gb`.",
        "properties": {"entry": _described(reference, "entry"), **fields},
        "additionalProperties": False,
    }
    for field in declaration["properties"].values():
        field.pop("default", None)  # those of a reference are the entry's
    return {**schemas, **shared, "ServiceDeclaration": declaration}


def _named_unions(fields: dict[str, Schema], by_degree: Mapping[str, tuple[str, str, str]]) -> dict[str, Schema]:
    """Name the unions of fields that have one value, or one for each degree. Return the schemas."""
    named: dict[str, Schema] = {}
    for name, (union, text, many_name) in by_degree.items():
        single, many = (form for form in fields[name]["anyOf"] if form.get("type") != "null")
        named[many_name] = {**many, "description": f"Degree -> {name}."}
        if single["type"] == "array":  # generators need a name for it
            named["ServiceCommandLine"] = {**single, "description": "A command and its arguments."}
            single = ref("ServiceCommandLine")
        named[union] = {"description": text, "oneOf": [single, ref(many_name)]}
        fields[name] = {**ref(union), "description": fields[name].get("description", "")}
    return named


def _described(schema: Schema, name: str) -> dict[str, Any]:
    found: dict[str, Any] = schema["properties"][name]
    return found
