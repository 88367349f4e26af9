"""Errors of ours in the form of the engines' own, which their clients can read."""

from __future__ import annotations

from typing import Final

import msgspec

from shared.api.model_routes import ErrorStyle
from shared.runtime.errors import TreadleError
from shared.runtime.streamed_answer import Header

_json = msgspec.json.Encoder().encode

ANTHROPIC: Final = {
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    503: "overloaded_error",
}
"""Status -> type of an error of the Messages API."""


def engine_error(error: TreadleError, style: ErrorStyle) -> tuple[int, bytes, list[Header]]:
    """Return status, body and headers of an error."""
    if style == "anthropic":
        kind = ANTHROPIC.get(error.status, "api_error")
        document: object = {"type": "error", "error": {"type": kind, "message": str(error)}}
    else:
        document = {"error": {"message": str(error), "type": error.slug, "param": None, "code": error.status}}
    headers = [(name.encode(), value.encode()) for name, value in error.headers().items()]
    return error.status, _json(document), [(b"content-type", b"application/json"), *headers]
