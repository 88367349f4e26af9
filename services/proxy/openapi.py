"""The OpenAPI 3.1 document: FastAPI's own, with the hot routes written in beside them."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI

from services.proxy.sandbox_fusion import RunCode
from shared.api.requests import HOT_TYPES
from shared.app import PROBLEM_JSON
from shared.messages.kinds import KINDS, Params

REF = "#/components/schemas/{name}"

_BATCH = {
    "name": "batch",
    "in": "query",
    "description": "Batch of the requests that do not name one themselves.",
    "schema": {"type": "string"},
}
_TENANT = {
    "name": "Treadle-Tenant",
    "in": "header",
    "description": "Who asks; one default tenant until keys exist.",
    "schema": {"type": "string", "default": "default", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
}
_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}

_REASONS = {
    404: "Nothing of that name is here",
    409: "It contradicts what was accepted before",
    413: "The body is too large",
    422: "The body or a parameter does not mean anything",
    503: "A bound is reached, or a part is away; retry after the time named",
    504: "The deadline came, or is predicted to come, before an answer; retry",
}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REF.format(name=name)}}}


def _responses(ok: dict[int, tuple[str, str]], *problems: int) -> dict[str, Any]:
    good = {str(status): {"description": text, "content": _json(schema)} for status, (text, schema) in ok.items()}
    bad = {
        str(status): {
            "description": _REASONS[status],
            "content": {PROBLEM_JSON: {"schema": {"$ref": REF.format(name="Problem")}}},
        }
        for status in problems
    }
    return good | bad


def _body(schema: str) -> dict[str, Any]:
    return {"required": True, "content": _json(schema)}


_STANDING = {200: ("It has finished", "Answer"), 202: ("Accepted, not finished yet", "Answer")}


def _wait(max_s: float) -> dict[str, Any]:
    return {
        "name": "wait",
        "in": "query",
        "description": "Seconds to wait for the answer (long poll). Without it the reply says where the action stands.",
        "schema": {"type": "number", "minimum": 0, "maximum": max_s},
    }


def _hot_paths(max_wait_s: float) -> dict[str, Any]:
    wait = _wait(max_wait_s)
    run_code = {
        "tags": ["sandbox fusion"],
        "summary": "Run a program as SandboxFusion does",
        "requestBody": _body("RunCode"),
        "responses": _responses({200: ("It has run, or says why not", "RunCodeReply")}, 413, 422, 504),
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
                "parameters": [wait, _TENANT],
                "requestBody": _body("ActionRequest"),
                "responses": _responses(_STANDING, 409, 413, 422, 503),
            }
        },
        "/v1/actions/{id}": {
            "get": {
                "tags": ["actions"],
                "operationId": "get_action",
                "summary": "State or answer of an action or a reward request",
                "parameters": [_ID, wait],
                "responses": _responses(_STANDING, 404, 422, 503),
            },
            "delete": {
                "tags": ["actions"],
                "operationId": "delete_action",
                "summary": "Cancel an action; what has finished stays finished",
                "parameters": [_ID],
                "responses": _responses(_STANDING, 404, 503),
            },
        },
        "/v1/rewards": {
            "post": {
                "tags": ["rewards"],
                "operationId": "post_reward",
                "summary": "One reward request",
                "parameters": [wait, _BATCH, _TENANT],
                "requestBody": _body("RewardRequest"),
                "responses": _responses(_STANDING, 404, 409, 413, 422, 503),
            }
        },
        "/v1/rewards/bulk": {
            "post": {
                "tags": ["rewards"],
                "operationId": "post_rewards",
                "summary": "Reward requests by the thousand, one a line (NDJSON)",
                "description": "Good lines are accepted whatever the others are; send the rejected ones again, mended. "
                "It is 404 where all lines name the same batch, and there is none of that name.",
                "parameters": [_BATCH, _TENANT],
                "requestBody": {
                    "required": True,
                    "content": {"application/x-ndjson": {"schema": {"$ref": REF.format(name="RewardRequest")}}},
                },
                "responses": _responses({200: ("What became of the lines", "BulkReceipt")}, 404, 413, 422, 503),
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
    action = schemas["ActionRequest"]
    action["properties"]["kind"]["enum"] = list(KINDS)
    action["oneOf"] = [_of_kind(kind, params) for kind, params in KINDS.items()]
    return {**schemas, "RunCodeReply": _RUN_CODE_REPLY, "ResultLine": _RESULT_LINE}


def _of_kind(kind: str, params: type[Params]) -> dict[str, Any]:
    """The kind decides what `params` are; they may be left out where all of them have defaults."""
    needed = any(field.required for field in msgspec.structs.fields(params))
    return {
        "properties": {"kind": {"const": kind}, "params": {"$ref": REF.format(name=params.__name__)}},
        "required": ["kind", "params"] if needed else ["kind"],
    }


def extend_openapi(app: FastAPI, *, max_wait_s: float) -> None:
    """Make `app.openapi()` tell of the hot routes as well. `max_wait_s`: the longest `wait=` this replica grants."""
    own = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = own()
            document["paths"] = dict(sorted({**document["paths"], **_hot_paths(max_wait_s)}.items()))
            document["components"]["schemas"] |= _schemas()
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
