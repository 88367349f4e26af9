"""Parts that the paths of bare routes are written with, in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from services.proxy.http.openapi.schemas import ref
from shared.runtime.app import PROBLEM_JSON
from shared.runtime.patterns import NAME

TENANT = {
    "name": "Treadle-Tenant",
    "in": "header",
    "description": "Who asks; one default tenant until keys exist.",
    "schema": {"type": "string", "default": "default", "pattern": NAME},
}
ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "Id of the action, as its submission returned it.",
    "schema": {"type": "string"},
}

REASONS = {
    404: "Nothing of that name is here",
    409: "It contradicts what was accepted before",
    413: "The body is too large",
    422: "The body or a parameter does not mean anything",
    503: "A bound is reached, or a part is away; retry after the time named",
    504: "The deadline came, or is predicted to come, before an answer; retry",
}


def json_of(name: str) -> dict[str, Any]:
    """A body that is of this schema."""
    return {"application/json": {"schema": ref(name)}}


def responses(ok: dict[int, tuple[str, str]], *problems: int) -> dict[str, Any]:
    """Answers of a route: status -> (what it means, its schema), and the statuses of its problems."""
    good = {str(status): {"description": text, "content": json_of(schema)} for status, (text, schema) in ok.items()}
    bad = {
        str(status): {
            "description": REASONS[status],
            "content": {PROBLEM_JSON: {"schema": ref("Problem")}},
        }
        for status in problems
    }
    return good | bad


def body(schema: str) -> dict[str, Any]:
    """A body that must be there."""
    return {"required": True, "content": json_of(schema)}


def lines(name: str) -> dict[str, Any]:
    """A body of NDJSON: text for generators, which know no streams; `x-item-schema` is the schema of one line."""
    text = f"NDJSON: one `{name}` a line."
    return {"application/x-ndjson": {"schema": {"type": "string", "description": text, "x-item-schema": ref(name)}}}


ANSWER = {200: ("It has finished", "Answer"), 202: ("Accepted, not finished yet", "Answer")}


def waiting(max_s: float) -> dict[str, Any]:
    """The parameter `wait`."""
    return {
        "name": "wait",
        "in": "query",
        "description": "Seconds to wait for the answer (long poll). Without it the reply has the current state.",
        "schema": {"type": "number", "minimum": 0, "maximum": max_s},
    }
