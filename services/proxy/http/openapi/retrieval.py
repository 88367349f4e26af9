"""`/retrieve` in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from services.proxy.http.openapi.kinds import struct_schemas
from services.proxy.http.openapi.parts import body, responses
from services.proxy.http.openapi.schemas import Schema, ref
from services.proxy.http.retrieval import Retrieve

_PATH = [
    {
        "name": name,
        "in": "path",
        "required": True,
        "description": f"The {name} whose stage of kind `search.retrieve` has the upstream.",
        "schema": {"type": "string"},
    }
    for name in ("tenant", "task")
]


def retrieval_paths() -> dict[str, Any]:
    """Paths by template."""
    route = {
        "tags": ["retrieval"],
        "summary": "Ask a retrieval server for documents, within its quotas",
        "description": "Upstream and quotas are those of the task, whose only stage is of kind `search.retrieve`: "
        "`retrieve` of the tenant `default`, or the task of the path. Overload, a late answer and a failed upstream "
        "are 503 with Retry-After. The same call within a minute joins the actions of the former one.",
        "requestBody": body("Retrieve"),
        "responses": responses({200: ("Documents of each query", "RetrieveReply")}, 404, 413, 422, 503),
    }
    return {
        "/retrieve": {"post": {**route, "operationId": "retrieve"}},
        "/t/{tenant}/{task}/retrieve": {"post": {**route, "operationId": "retrieve_by_task", "parameters": _PATH}},
    }


_DOCUMENT = {
    "type": "object",
    "description": 'As the retrieval server sends it: {"contents": text}, or with scores {"document": {"contents": '
    'text}, "score": number}.',
    "additionalProperties": True,
}


def retrieval_schemas() -> dict[str, Schema]:
    """Bodies of these routes."""
    documents = {"type": "array", "description": "Documents of one query.", "items": ref("RetrievedDocument")}
    return {
        **struct_schemas((Retrieve,)),
        "RetrievedDocument": _DOCUMENT,
        "RetrieveReply": {
            "type": "object",
            "description": "Documents of each query, in the order of the queries.",
            "properties": {"result": {"type": "array", "items": documents}},
            "required": ["result"],
        },
    }
