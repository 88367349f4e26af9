"""Declarations of model services in the OpenAPI document: one object, because generators have no open unions."""

from __future__ import annotations

import copy
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


def model_service_schemas() -> dict[str, Schema]:
    """Return the schemas of a declaration: the fields of a whole entry, and `entry` of a reference."""
    schemas = struct_schemas((EngineCanary, MemoryNeed, ServiceEntry, ServiceReference))
    whole, reference = schemas.pop("ServiceEntry"), schemas.pop("ServiceReference")
    schemas.pop("CanaryTexts", None)
    fields: dict[str, Schema] = copy.deepcopy(whole["properties"])
    shared: dict[str, Schema] = {}
    for name, (union, text, by_degree) in _BY_DEGREE.items():
        single, many = (form for form in fields[name]["anyOf"] if form.get("type") != "null")
        shared[by_degree] = {**many, "description": f"Degree -> {name}."}
        if single["type"] == "array":  # generators need a name for it
            shared["ServiceCommandLine"] = {**single, "description": "A command and its arguments."}
            single = ref("ServiceCommandLine")
        shared[union] = {"description": text, "oneOf": [single, ref(by_degree)]}
        fields[name] = {**ref(union), "description": fields[name].get("description", "")}
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


def _described(schema: Schema, name: str) -> dict[str, Any]:
    found: dict[str, Any] = schema["properties"][name]
    return found
