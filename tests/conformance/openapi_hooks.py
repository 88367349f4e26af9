"""What schemathesis is told about this mesh (SCHEMATHESIS_HOOKS): names that exist, and how NDJSON is written."""

from __future__ import annotations

import json
import os
from typing import Any

import schemathesis
from schemathesis.core.failures import AcceptedNegativeData, Failure, ServerError
from schemathesis.openapi.checks import UseAfterFree

Names = dict[str, Any] | None

KNOWN = json.loads(os.environ["TREADLE_KNOWN"])
"""Path parameter -> something of that name that is there."""


@schemathesis.serializer("application/x-ndjson")
def write_lines(context: schemathesis.SerializationContext, value: Any) -> bytes:
    """A body of one line, or of one for each item."""
    lines = value if isinstance(value, list) else [value]
    return b"\n".join(json.dumps(line, default=repr).encode() for line in lines)


@schemathesis.hook
def map_path_parameters(context: schemathesis.HookContext, path_parameters: Names) -> Names:
    """Every other generated name becomes one that exists, or nothing but 404 would ever be seen."""
    if path_parameters is None:
        return None
    return {name: KNOWN[name] if name in KNOWN and _is_odd(value) else value for name, value in path_parameters.items()}


def _is_odd(value: Any) -> bool:
    return len(str(value)) % 2 == 1


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case[Any], kwargs: dict[str, Any]) -> None:
    """Following ends with the batch, and only one is known to have ended.

    Commands are not given for ever; environments are small, leave soon, are of no image that has to be had, and of the
    class of the node there is: an action for a class without nodes waits for one as long as its caller allows.
    """
    body = case.body if isinstance(case.body, dict) else {}
    if case.path.endswith("/results") and case.path_parameters.get("batch") != KNOWN["batch"]:
        case.query.pop("follow", None)
    if case.path.endswith(("/run_in_session", "/execute")) and _fits(body.get("timeout"), int | float | None):
        body["timeout"] = 1
    if case.path.endswith("/create_session") and _fits(body.get("startup_timeout"), int | float):
        body["startup_timeout"] = 1
    if case.path == "/v1/trajectories" and _fits(body.get("node_class"), str):
        body["node_class"] = "default"
    if case.path == "/v1/trajectories" and isinstance(environment := body.get("environment"), dict):
        for name, form, value in (("image", str, "local"), ("memory_mb", int, 32), ("idle_s", int | float, 5.0)):
            if _fits(environment.get(name, value), form):
                environment[name] = value


def _fits(value: Any, form: Any) -> bool:
    return isinstance(value, form) and not isinstance(value, bool)


@schemathesis.hook
def filter_failure(
    context: schemathesis.HookContext, failure: Failure, case: schemathesis.Case[Any], response: schemathesis.Response
) -> bool:
    """Three rules of most services are not ours, and one case is of our own making.

    A bulk call takes bad lines beside good ones: what is wrong with one stands in the receipt, not in the status.
    DELETE of a batch or an action cancels what is left of it, of a trajectory ends it: what there is stays readable.
    511 is how SWE-ReX says that its client shall raise an exception.
    """
    if isinstance(failure, ServerError) and response.status_code == 511:
        return False
    if isinstance(failure, AcceptedNegativeData):
        mended = any(value in KNOWN.values() for value in (case.path_parameters or {}).values())  # by the map above
        return case.path != "/v1/rewards/bulk" and not mended
    readable = ("/v1/batches", "/v1/actions", "/v1/trajectories")
    return not (isinstance(failure, UseAfterFree) and case.path.startswith(readable))
