"""Trajectories in the OpenAPI document, including SWE-ReX's verbs."""

from __future__ import annotations

from typing import Any

from services.proxy.http.openapi.kinds import parameter_types, struct_schemas, variants, write_costs
from services.proxy.http.openapi.parts import ANSWER, TENANT, body, json_of, responses, waiting
from services.proxy.http.openapi.schemas import Schema, nullable, object_of, ref
from services.proxy.http.swerex.acting import MOST_REQUEST_ID
from services.proxy.http.swerex.forms import FORMS, RAISED, BashAction, BashInterruptAction
from services.proxy.http.trajectories import MOST_LISTED, STATES
from shared.api.tokens import TOKEN_TYPES
from shared.api.trajectories import TRAJECTORY_TYPES
from shared.kinds.registry import all_kinds
from shared.messages.environments import EnvironmentSpec

_BASE = "/v1/trajectories/{trajectory}"
_NAME = {
    "name": "trajectory",
    "in": "path",
    "required": True,
    "description": "Id of the trajectory.",
    "schema": {"type": "string"},
}
_REQUEST_ID = {
    "name": "X-Request-ID",
    "in": "header",
    "description": "Your own id of the call. A repeat with the same id returns the first answer.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MOST_REQUEST_ID},
}
_LISTED = [
    {
        "name": "state",
        "in": "query",
        "description": "State of the listed trajectories.",
        "schema": {"type": "string", "enum": list(STATES), "default": "open"},
    },
    {
        "name": "limit",
        "in": "query",
        "description": "Most trajectories in the list.",
        "schema": {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": 100},
    },
]


def trajectory_paths(max_wait_s: float) -> dict[str, Any]:
    """Paths by template. `max_wait_s`: the longest `wait=`."""
    return _collection() | _one(max_wait_s) | _swerex_paths()


def _operation(name: str, summary: str, *parameters: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {
        "tags": ["trajectories"],
        "operationId": name,
        "summary": summary,
        "parameters": list(parameters),
        **rest,
    }


def _collection() -> dict[str, Any]:
    opened = {201: ("Opened", "TrajectoryView"), 200: ("Opened before, with this request_id", "TrajectoryView")}
    return {
        "/v1/trajectories": {
            "post": _operation(
                "post_trajectory",
                "Open a trajectory; its environment is created with its first action",
                TENANT,
                requestBody=body("TrajectoryRequest"),
                responses=responses(opened, 404, 409, 413, 422, 503),
            ),
            "get": _operation(
                "list_trajectories",
                "Trajectories in one state, newest first",
                *_LISTED,
                responses=responses({200: ("At most `limit` trajectories", "TrajectoryList")}, 422, 503),
            ),
        }
    }


def _one(max_wait_s: float) -> dict[str, Any]:
    current = {200: ("Its status", "TrajectoryView")}
    return {
        _BASE: {
            "get": _operation("get_trajectory", "One trajectory", _NAME, responses=responses(current, 404, 422, 503)),
            "patch": _operation(
                "patch_trajectory",
                "Change the priority of an open trajectory, for its unanswered and its later actions; may be repeated",
                _NAME,
                requestBody=body("TrajectoryChange"),
                responses=responses(current, 404, 409, 413, 422, 503),
            ),
            "delete": _operation(
                "delete_trajectory",
                "Close a trajectory: cancel its unanswered actions, end its environment; its record remains",
                _NAME,
                responses=responses(current, 404, 422, 503),
            ),
        },
        f"{_BASE}/actions": {
            "post": _operation(
                "post_trajectory_action",
                "Act in its environment; actions of one trajectory run in order of arrival",
                _NAME,
                waiting(max_wait_s),
                requestBody=body("TrajectoryAction"),
                responses=responses(ANSWER, 404, 409, 413, 422, 503),
            )
        },
    }


def _swerex_paths() -> dict[str, Any]:
    verbs = {
        "create_session": ("Start a shell", body("CreateSession"), "CreatedSession"),
        "run_in_session": ("Run a command in a shell", body("SessionAction"), "Observation"),
        "close_session": ("End a shell", body("CloseSession"), "ClosedSession"),
        "execute": ("Run a command outside any shell", body("Command"), "CommandReply"),
        "read_file": ("Read a file's text", body("ReadFile"), "FileText"),
        "write_file": ("Write a whole file", body("WriteFile"), "Nothing"),
        "upload": ("Write a file, or unpack a zip archive", _UPLOAD, "Nothing"),
        "close": ("Close the trajectory", None, "Nothing"),
    }
    paths = {
        f"{_BASE}/swerex/is_alive": {"get": _verb("is_alive", "Return whether the trajectory is open", None, "IsAlive")}
    }
    for verb, (summary, sent, schema) in verbs.items():
        paths[f"{_BASE}/swerex/{verb}"] = {"post": _verb(verb, summary, sent, schema)}
    return paths


def _verb(verb: str, summary: str, sent: dict[str, Any] | None, schema: str) -> dict[str, Any]:
    raised = {str(RAISED): {"description": "An exception for the client to raise", "content": json_of("SwerexRaised")}}
    return {
        "tags": ["swe-rex"],
        "operationId": f"swerex_{verb}",
        "summary": summary,
        "parameters": [_NAME, _REQUEST_ID],
        **({"requestBody": sent} if sent is not None else {}),
        "responses": responses({200: ("Done", schema)}, 404, 413, 422, 503) | raised,
    }


_UPLOAD = {"required": True, "content": {"multipart/form-data": {"schema": ref("UploadForm")}}}

_TEXT = {"type": "string"}
_CODE = nullable({"type": "integer"})
_BASH = {"type": "string", "enum": ["bash"]}
_REPLIES = {
    "IsAlive": object_of(is_alive={"type": "boolean"}, message=_TEXT)
    | {"description": "Whether the trajectory is open."},
    "CreatedSession": object_of(output=_TEXT, session_type=_BASH) | {"description": "A shell was started."},
    "ClosedSession": object_of(session_type=_BASH) | {"description": "A shell was ended."},
    "Observation": object_of(
        output=_TEXT, exit_code=_CODE, failure_reason=_TEXT, expect_string=_TEXT, session_type=_BASH
    )
    | {"description": "Output and end of a command in a shell."},
    "CommandReply": object_of(stdout=_TEXT, stderr=_TEXT, exit_code=_CODE)
    | {"description": "Output and end of a command outside any shell."},
    "FileText": object_of(content=_TEXT) | {"description": "A file's text."},
    "Nothing": object_of() | {"description": "An empty object."},
    "SwerexException": object_of(message=_TEXT, class_path=_TEXT, traceback=_TEXT, extra_info={"type": "object"})
    | {"description": "An exception of SWE-ReX or of Python."},
    "SwerexRaised": object_of(swerexception=ref("SwerexException"))
    | {"description": "An exception for the client to raise."},
    "UploadForm": {
        "type": "object",
        "description": "The form of an upload.",
        "required": ["file", "target_path"],
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "target_path": {"type": "string", "minLength": 1},
            "unzip": {
                "type": "string",
                "description": "`true`: unpack the file, a zip archive, into a directory.",
                "pattern": "^([Tt]rue|[Ff]alse|1|0|on|off|yes|no)$",
                "default": "false",
            },
        },
    },
}


def trajectory_schemas() -> dict[str, Schema]:
    """Bodies of these routes, and the parameters of every environment kind."""
    actions = (BashAction, BashInterruptAction)
    kinds = all_kinds().in_environments
    schemas = struct_schemas(
        (*TRAJECTORY_TYPES, *TOKEN_TYPES, EnvironmentSpec, *parameter_types(kinds), *FORMS, *actions)
    )
    write_costs(schemas["TrajectoryAction"])
    schemas["TrajectoryAction"], members = variants(schemas["TrajectoryAction"], kinds)
    schemas["TrajectoryView"]["properties"]["environment"] = ref("EnvironmentSpec")
    schemas["Command"]["properties"]["command"] = ref("CommandLine")
    named = {str(each.__struct_config__.tag): ref(each.__name__) for each in actions}
    session = {
        "description": "A command in a shell, or an interrupt of the command that it runs.",
        "oneOf": list(named.values()),
        "discriminator": {
            "propertyName": "action_type",
            "mapping": {tag: each["$ref"] for tag, each in named.items()},
        },
    }
    words = {"type": "array", "items": _TEXT, "description": "A program and its arguments."}
    line = {"description": "A command line, or its words.", "oneOf": [_TEXT, ref("CommandWords")]}
    return {**schemas, **members, **_REPLIES, "SessionAction": session, "CommandLine": line, "CommandWords": words}
