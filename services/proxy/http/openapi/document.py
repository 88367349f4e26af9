"""The whole document: FastAPI's own plus the bare ASGI routes, repaired for generators, with examples.

docs/openapi.json is a copy of it; tests/conformance/clients generates and compiles clients from it.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from services.proxy.http.openapi.examples import BODIES, RESPONSES, VALUES
from services.proxy.http.openapi.hot import hot_paths, hot_schemas
from services.proxy.http.openapi.kinds import kind_schemas, write_costs
from services.proxy.http.openapi.leases import lease_paths, lease_schemas
from services.proxy.http.openapi.model_services import model_service_schemas
from services.proxy.http.openapi.parts import REASONS
from services.proxy.http.openapi.retrieval import retrieval_paths, retrieval_schemas
from services.proxy.http.openapi.schemas import Schema, ref, repair
from services.proxy.http.openapi.trajectories import trajectory_paths, trajectory_schemas
from shared.runtime.app import PROBLEM_JSON

_DEFAULT_PORT = 8700
_SERVERS = [
    {"url": "/", "description": "The proxy that serves this document."},
    {"url": f"http://127.0.0.1:{_DEFAULT_PORT}", "description": "`treadle up` on this machine."},
]
_TAGS = {
    "tasks": "RL jobs: the stages that run for each sample.",
    "batches": "Batches of reward requests: open, read progress and results, end.",
    "rewards": "Reward requests, single and in bulk.",
    "actions": "Single actions outside any batch, and answers by id.",
    "trajectories": "Environments that continue between actions.",
    "swe-rex": "Trajectories for SWE-ReX's client.",
    "sandbox fusion": "Programs for SandboxFusion's clients.",
    "retrieval": "Documents for the clients of retrieval servers (Search-R1, verl, SkyRL, slime).",
    "tenants": "Weights of tenants.",
    "services": "Model services on GPUs: reward models, judges, teachers.",
    "quotas": "Slots and rates that belong to no node, such as those of an external API.",
    "mesh": "Nodes, pools, plans and health.",
    "service": "Probes and metrics.",
}


def extend_openapi(app: FastAPI, *, max_wait_s: float) -> None:
    """Make `app.openapi()` return the whole document. `max_wait_s`: the longest `wait=` of this replica."""
    own = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _whole(own(), max_wait_s)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document


def _whole(document: dict[str, Any], max_wait_s: float) -> dict[str, Any]:
    paths = {
        **document["paths"],
        **hot_paths(max_wait_s),
        **lease_paths(),
        **retrieval_paths(),
        **trajectory_paths(max_wait_s),
    }
    schemas: dict[str, Schema] = document["components"]["schemas"]
    schemas |= hot_schemas() | lease_schemas() | retrieval_schemas() | trajectory_schemas()
    schemas |= model_service_schemas()
    for replaced in ("AnyOf", "Amdahl", "Power"):
        schemas.pop(replaced)
    schemas |= kind_schemas()
    schemas.pop("CudaKernel", None)  # no action has it alone: `prepared_by` joins it with its compilation
    for name in ("KernelArgument", "KernelLaunch"):  # generators for Go and Java give no default to a union
        for field in schemas.get(name, {}).get("properties", {}).values():
            if "anyOf" in field:
                field.pop("default", None)
    write_costs(schemas["StageTemplate"])
    schemas["StageTemplate"]["properties"]["kind"] = ref("ActionKind")
    for name, values in VALUES.items():
        schemas[name]["examples"] = values
    for methods in paths.values():
        for operation in methods.values():
            _finish(operation)
    document["info"]["license"] = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
    return {
        **document,
        "servers": _SERVERS,
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": {name: repair(schema) for name, schema in sorted(schemas.items())}},
    }


def _finish(operation: dict[str, Any]) -> None:
    operation.setdefault("description", f"{operation['summary']}.")
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = repair(parameter["schema"])
    for status, response in operation["responses"].items():
        contents = response.get("content", {})
        if PROBLEM_JSON in contents:
            contents.pop("application/json", None)
            response["description"] = REASONS[int(status)]
        example = RESPONSES.get(operation["operationId"], {}).get(int(status))
        for content in contents.values():
            content["schema"] = repair(content["schema"])
            if example is not None:
                content["example"] = example
    for content in operation.get("requestBody", {}).get("content", {}).values():
        content["schema"] = repair(content["schema"])
        if operation["operationId"] in BODIES:
            content["examples"] = {name: {"value": value} for name, value in BODIES[operation["operationId"]].items()}
