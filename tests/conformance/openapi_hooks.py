"""What schemathesis is told about this mesh (SCHEMATHESIS_HOOKS): names that exist, and how NDJSON is written."""

from __future__ import annotations

import json
import os
from typing import Any

import schemathesis
from schemathesis.core.failures import AcceptedNegativeData, Failure
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
    """Following ends with the batch, and only one is known to have ended."""
    if case.path.endswith("/results") and case.path_parameters.get("batch") != KNOWN["batch"]:
        case.query.pop("follow", None)


@schemathesis.hook
def filter_failure(
    context: schemathesis.HookContext, failure: Failure, case: schemathesis.Case[Any], response: schemathesis.Response
) -> bool:
    """Two rules of most services are not ours, and one case is of our own making.

    A bulk call takes bad lines beside good ones: what is wrong with one stands in the receipt, not in the status.
    DELETE of a batch or an action cancels what is left of it: its results stay readable.
    """
    if isinstance(failure, AcceptedNegativeData):
        mended = any(value in KNOWN.values() for value in (case.path_parameters or {}).values())  # by the map above
        return case.path != "/v1/rewards/bulk" and not mended
    return not (isinstance(failure, UseAfterFree) and case.path.startswith(("/v1/batches", "/v1/actions")))
