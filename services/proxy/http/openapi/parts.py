"""Parts of the descriptions of bare routes in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from services.proxy.http.openapi.schemas import ref
from shared.runtime.app import PROBLEM_JSON
from shared.runtime.patterns import NAME

TENANT = {
    "name": "Treadle-Tenant",
    "in": "header",
    "description": "The caller's tenant. There are no keys yet, so one default tenant is enough.",
    "schema": {"type": "string", "default": "default", "pattern": NAME},
}
ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "Id of the action, from the reply to its submission.",
    "schema": {"type": "string"},
}

REASONS = {
    403: "The operator's settings do not allow it",
    404: "Nothing of this name exists",
    409: "The request contradicts an earlier accepted one",
    413: "The body is too large",
    422: "The body or a parameter is invalid",
    429: "The quotas cannot give the amounts in time; retry after `Retry-After`",
    503: "A bound is reached, a part does not answer, or a model service was not resident in time; retry after "
    "`Retry-After`",
    504: "The deadline has passed, or is predicted to pass, before the answer; retry",
}

RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds after which a repeat may succeed.",
        "schema": {"type": "integer", "minimum": 0},
    }
}
"""Headers of answers that ask for a repeat."""


def json_of(name: str) -> dict[str, Any]:
    """Return a JSON body with this schema."""
    return {"application/json": {"schema": ref(name)}}


def responses(ok: dict[int, tuple[str, str]], *problems: int) -> dict[str, Any]:
    """Return the responses of a route. `ok`: status -> (description, schema); `problems`: statuses of its errors."""
    good = {str(status): {"description": text, "content": json_of(schema)} for status, (text, schema) in ok.items()}
    bad = {
        str(status): {
            "description": REASONS[status],
            "content": {PROBLEM_JSON: {"schema": ref("Problem")}},
        }
        | ({"headers": RETRY_AFTER} if status in (429, 503) else {})
        for status in problems
    }
    return good | bad


def body(schema: str) -> dict[str, Any]:
    """Return a required JSON body."""
    return {"required": True, "content": json_of(schema)}


def lines(name: str) -> dict[str, Any]:
    """Return a body of NDJSON. Generators have no streams, so it is text; `x-item-schema` is the schema of a line."""
    text = f"NDJSON: one `{name}` per line."
    return {"application/x-ndjson": {"schema": {"type": "string", "description": text, "x-item-schema": ref(name)}}}


ANSWER = {200: ("Finished", "Answer"), 202: ("Accepted, not finished yet", "Answer")}


def waiting(max_s: float) -> dict[str, Any]:
    """Return the parameter `wait`."""
    return {
        "name": "wait",
        "in": "query",
        "description": "Seconds to wait for the answer (long poll). Without it the reply has the current state.",
        "schema": {"type": "number", "minimum": 0, "maximum": max_s},
    }
