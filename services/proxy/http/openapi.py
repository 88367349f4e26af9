"""The OpenAPI 3.1 document: FastAPI's own, with the hot routes written in beside them."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI

from services.proxy.http.openapi_parts import ID, REF, STANDING, TENANT, body, responses, say_kinds, waiting
from services.proxy.http.openapi_trajectories import trajectory_paths, trajectory_schemas
from services.proxy.http.sandbox_fusion import RunCode
from shared.api.requests import HOT_TYPES
from shared.messages.kinds import KINDS

_BATCH = {
    "name": "batch",
    "in": "query",
    "description": "Batch of the requests that do not name one themselves.",
    "schema": {"type": "string"},
}


def _hot_paths(max_wait_s: float) -> dict[str, Any]:
    wait = waiting(max_wait_s)
    run_code = {
        "tags": ["sandbox fusion"],
        "summary": "Run a program as SandboxFusion does",
        "description": "A caller whose timeout counts between bytes (by default: User-Agent python-requests) is held: "
        "the headers leave at once, then a blank byte every few seconds, then the JSON. Others get 504 at their "
        "deadline; sent again within a minute, the call joins its action. The end of the connection cancels it.",
        "requestBody": body("RunCode"),
        "responses": responses({200: ("It has run, or says why not", "RunCodeReply")}, 413, 422, 504),
    }
    prefix = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in ("tenant", "task")
    ]
    return {
        "/v1/actions": {
            "post": {
                "tags": ["actions"],
                "operationId": "post_action",
                "summary": "One action outside any batch",
                "parameters": [wait, TENANT],
                "requestBody": body("ActionRequest"),
                "responses": responses(STANDING, 409, 413, 422, 503),
            }
        },
        "/v1/actions/{id}": {
            "get": {
                "tags": ["actions"],
                "operationId": "get_action",
                "summary": "State or answer of an action or a reward request",
                "parameters": [ID, wait],
                "responses": responses(STANDING, 404, 422, 503),
            },
            "delete": {
                "tags": ["actions"],
                "operationId": "delete_action",
                "summary": "Cancel an action; what has finished stays finished",
                "parameters": [ID],
                "responses": responses(STANDING, 404, 422, 503),
            },
        },
        "/v1/rewards": {
            "post": {
                "tags": ["rewards"],
                "operationId": "post_reward",
                "summary": "One reward request",
                "parameters": [wait, _BATCH, TENANT],
                "requestBody": body("RewardRequest"),
                "responses": responses(STANDING, 404, 409, 413, 422, 503),
            }
        },
        "/v1/rewards/bulk": {
            "post": {
                "tags": ["rewards"],
                "operationId": "post_rewards",
                "summary": "Reward requests by the thousand, one a line (NDJSON)",
                "description": "Good lines are accepted whatever the others are; send the rejected ones again, mended. "
                "It is 404 where all lines name the same batch, and there is none of that name.",
                "parameters": [_BATCH, TENANT],
                "requestBody": {
                    "required": True,
                    "content": {"application/x-ndjson": {"schema": {"$ref": REF.format(name="RewardRequest")}}},
                },
                "responses": responses({200: ("What became of the lines", "BulkReceipt")}, 404, 413, 422, 503),
            }
        },
        "/run_code": {"post": {**run_code, "operationId": "run_code"}},
        "/t/{tenant}/{task}/run_code": {
            "post": {**run_code, "operationId": "run_code_of_task", "parameters": prefix},
        },
        "/v1/ping": {
            "get": {
                "tags": ["sandbox fusion"],
                "operationId": "ping",
                "summary": "SandboxFusion's liveness",
                "responses": {
                    "200": {
                        "description": "pong",
                        "content": {"application/json": {"schema": {"type": "string", "const": "pong"}}},
                    }
                },
            }
        },
    }


_COMMAND_RESULT = {
    "type": ["object", "null"],
    "properties": {
        "status": {"enum": ["Finished", "Error", "TimeLimitExceeded"]},
        "execution_time": {"type": ["number", "null"]},
        "return_code": {"type": ["integer", "null"]},
        "stdout": {"type": ["string", "null"]},
        "stderr": {"type": ["string", "null"]},
    },
}
_RUN_CODE_REPLY = {
    "type": "object",
    "required": ["status", "message", "compile_result", "run_result", "executor_pod_name", "files"],
    "properties": {
        "status": {"enum": ["Success", "Failed", "SandboxError"]},
        "message": {"type": "string"},
        "compile_result": _COMMAND_RESULT,
        "run_result": _COMMAND_RESULT,
        "executor_pod_name": {"type": ["string", "null"]},
        "files": {"type": "object", "additionalProperties": {"type": "string"}},
        "queue_time": {"type": "number"},
        "cpu_time": {"type": "number"},
        "peak_memory": {"type": "integer"},
    },
}


_RESULT_LINE = {
    "description": "One answer, and where to read on: `after=<cursor>`.",
    "allOf": [{"$ref": REF.format(name="Answer")}],
    "type": "object",
    "required": ["cursor", "id", "state"],
    "properties": {"cursor": {"type": "string", "pattern": r"^\d+-\d+$"}},
}


def _schemas() -> dict[str, Any]:
    """Bodies of the hot routes, and the parameters of every action kind."""
    types = (*HOT_TYPES, RunCode, *KINDS.values())
    _, schemas = msgspec.json.schema_components(types, ref_template=REF)
    say_kinds(schemas["ActionRequest"], KINDS)
    return {**schemas, "RunCodeReply": _RUN_CODE_REPLY, "ResultLine": _RESULT_LINE}


def extend_openapi(app: FastAPI, *, max_wait_s: float) -> None:
    """Make `app.openapi()` tell of the hot routes as well. `max_wait_s`: the longest `wait=` this replica grants."""
    own = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = own()
            paths = {**document["paths"], **_hot_paths(max_wait_s), **trajectory_paths(max_wait_s)}
            document["paths"] = dict(sorted(paths.items()))
            document["components"]["schemas"] |= _schemas() | trajectory_schemas()
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
