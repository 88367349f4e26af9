"""Actions, rewards and SandboxFusion's routes in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from services.proxy.http.openapi.kinds import parameter_types, struct_schemas, variants, write_costs
from services.proxy.http.openapi.parts import ANSWER, ID, TENANT, body, lines, responses, waiting
from services.proxy.http.openapi.schemas import Schema, nullable, object_of, ref
from services.proxy.http.sandbox_fusion import RunCode
from shared.api.requests import HOT_TYPES, Act, Rejection, StageReport
from shared.kinds.registry import all_kinds

_BATCH = {
    "name": "batch",
    "in": "query",
    "description": "Batch of the requests without a `batch` of their own.",
    "schema": {"type": "string"},
}


def hot_paths(max_wait_s: float) -> dict[str, Any]:
    """Paths by template. `max_wait_s`: the longest `wait=`."""
    wait = waiting(max_wait_s)
    run_code = {
        "tags": ["sandbox fusion"],
        "summary": "Run a program, as SandboxFusion's route does",
        "description": "A caller whose timeout counts between bytes (by default: User-Agent python-requests) is held: "
        "it receives the headers at once, then a space every few seconds, then the JSON. Other callers get 504 at "
        "their deadline. A repeat within a minute joins the running action. A disconnect cancels it.",
        "requestBody": body("RunCode"),
        "responses": responses(
            {200: ("It has run, or the message has the reason why not", "RunCodeReply")}, 413, 422, 504
        ),
    }
    prefix = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": f"The {name} of the program.",
            "schema": {"type": "string"},
        }
        for name in ("tenant", "task")
    ]
    return {
        "/v1/actions": {
            "post": {
                "tags": ["actions"],
                "operationId": "post_action",
                "summary": "One action outside any batch",
                "parameters": [wait, TENANT],
                "requestBody": body("ActionRequest"),
                "responses": responses(ANSWER, 409, 413, 422, 503),
            }
        },
        "/v1/actions/{id}": {
            "get": {
                "tags": ["actions"],
                "operationId": "get_action",
                "summary": "State or answer of an action or a reward request",
                "parameters": [ID, wait],
                "responses": responses(ANSWER, 404, 422, 503),
            },
            "delete": {
                "tags": ["actions"],
                "operationId": "delete_action",
                "summary": "Cancel an action; a finished one does not change",
                "parameters": [ID],
                "responses": responses(ANSWER, 404, 422, 503),
            },
        },
        "/v1/actions/{id}/park": {
            "post": {
                "tags": ["actions"],
                "operationId": "park_action",
                "summary": "Park a running action of a trajectory: it is frozen and returns its cores; may be repeated",
                "parameters": [ID],
                "requestBody": {**body("ParkRequest"), "required": False},
                "responses": responses(ANSWER, 404, 409, 413, 422, 503),
            }
        },
        "/v1/actions/{id}/resume": {
            "post": {
                "tags": ["actions"],
                "operationId": "resume_action",
                "summary": "Continue a parked action as soon as its cores are free; may be repeated",
                "parameters": [ID],
                "responses": responses(ANSWER, 404, 409, 422, 503),
            }
        },
        "/v1/rewards": {
            "post": {
                "tags": ["rewards"],
                "operationId": "post_reward",
                "summary": "One reward request",
                "parameters": [wait, _BATCH, TENANT],
                "requestBody": body("RewardRequest"),
                "responses": responses(ANSWER, 404, 409, 413, 422, 503),
            }
        },
        "/v1/rewards/bulk": {
            "post": {
                "tags": ["rewards"],
                "operationId": "post_rewards",
                "summary": "Reward requests in bulk, one per line (NDJSON)",
                "description": "A valid line is accepted even if others are rejected. Correct the rejected lines and "
                "send only these again. The status is 404 if all lines name the same missing batch.",
                "parameters": [_BATCH, TENANT],
                "requestBody": {"required": True, "content": lines("RewardRequest")},
                "responses": responses({200: ("Receipt of all lines", "BulkReceipt")}, 404, 413, 422, 503),
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
                "summary": "Liveness, as SandboxFusion's route",
                "responses": {
                    "200": {
                        "description": "pong",
                        "content": {"application/json": {"schema": {"type": "string", "enum": ["pong"]}}},
                    }
                },
            }
        },
    }


_TEXT = {"type": "string"}
_RUN_CODE_REPLY = object_of(
    status={"type": "string", "enum": ["Success", "Failed", "SandboxError"]},
    message=_TEXT,
    compile_result=nullable(ref("CommandRunResult")),
    run_result=nullable(ref("CommandRunResult")),
    executor_pod_name=nullable(_TEXT),
    files={"type": "object", "additionalProperties": _TEXT},
)
_RUN_CODE_REPLY["description"] = "Result of a program in SandboxFusion's format."
_RUN_CODE_REPLY["properties"] |= {
    "queue_time": {"type": "number"},
    "cpu_time": {"type": "number"},
    "peak_memory": {"type": "integer"},
}
_COMMAND_RUN_RESULT = {
    "type": "object",
    "description": "One step of a program: its compilation or its run.",
    "properties": {
        "status": {"type": "string", "enum": ["Finished", "Error", "TimeLimitExceeded"]},
        "execution_time": nullable({"type": "number"}),
        "return_code": nullable({"type": "integer"}),
        "stdout": nullable(_TEXT),
        "stderr": nullable(_TEXT),
    },
}


def hot_schemas() -> dict[str, Schema]:
    """Bodies of the hot routes, and the parameters of every action kind."""
    kinds = all_kinds().plain
    schemas = struct_schemas((*HOT_TYPES, Act, StageReport, Rejection, RunCode, *parameter_types(kinds)))
    write_costs(schemas["ActionRequest"])
    schemas["ActionRequest"], members = variants(schemas["ActionRequest"], kinds)
    request = schemas["RewardRequest"]["properties"]
    for name, schema in (("params", _ANY_OBJECT), ("stage_params", _OBJECTS)):
        request[name] = {**schema, "description": request[name]["description"]}
    golds = next(form for form in schemas["AnswerMatch"]["properties"]["gold"]["anyOf"] if form["type"] == "array")
    schemas["AnswerMatch"]["properties"]["gold"] = ref("Gold")
    schemas["PythonFunction"]["properties"]["ground_truth"] = {"description": "Any JSON value."}
    answer = schemas["Answer"]
    line = {
        "type": "object",
        "description": "One answer and its cursor. Continue with `after=<cursor>`.",
        "properties": {"cursor": {"type": "string", "pattern": r"^\d+-\d+$"}, **answer["properties"]},
        "required": ["cursor", *answer["required"]],
    }
    return {
        **schemas,
        **members,
        "Gold": {"description": "The correct answer, or all correct answers.", "oneOf": [_TEXT, ref("Golds")]},
        "Golds": {**golds, "description": "All correct answers."},
        "RunCodeReply": _RUN_CODE_REPLY,
        "CommandRunResult": _COMMAND_RUN_RESULT,
        "ResultLine": line,
    }


_ANY_OBJECT = {"type": "object", "additionalProperties": True}
_OBJECTS = {"type": "object", "additionalProperties": _ANY_OBJECT}
