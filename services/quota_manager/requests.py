"""From a kind's parameters to the call that is sent. Pure. Secrets stay references: `outgoing` resolves them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from services.quota_manager.kinds import HttpCall, OutgoingParams, SearchRetrieve, SecretReference
from services.quota_manager.outgoing.calls import OutgoingCall, SecretName
from services.quota_manager.templates import InvalidTemplate, fill_json, fill_query, fill_url
from shared.messages.grants import Granted
from shared.policy.model.formulation import FailedCalls
from shared.runtime.units import Seconds

REPEATABLE_METHODS: Final = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})
"""Methods whose repeat changes nothing more (RFC 9110, 9.2.2)."""
JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain; charset=utf-8"
LEAST_S: Final[Seconds] = 0.1
"""Limit of an attempt whose budget is over while it is granted."""
_encoder: Final = msgspec.json.Encoder()


def http_call(params: HttpCall, grant: Granted) -> OutgoingCall:
    """Return the call of kind `http`.

    Raises:
        InvalidTemplate: the parameters do not form a call.
    """
    if params.json is not None and params.text is not None:
        raise InvalidTemplate("`json` and `text` are both bodies: give one of them")
    body: bytes | None = None
    if params.json is not None:
        body = _encoder.encode(fill_json(params.json, params.values))
    elif params.text is not None:
        body = params.text.encode("utf-8", "replace")
    if body is not None and params.method in ("GET", "HEAD"):
        raise InvalidTemplate(f"method: {params.method} has no body; use POST")
    kind = params.content_type or (TEXT_TYPE if params.text is not None else JSON_TYPE)
    return _call(params.method, params, grant, body, kind)


def retrieve_call(params: SearchRetrieve, grant: Granted) -> OutgoingCall:
    """Return the call of kind `search.retrieve`.

    Raises:
        InvalidTemplate: the parameters do not form a call.
    """
    body: dict[str, Any]
    if params.form == "query":
        if len(params.queries) > 1:
            raise InvalidTemplate("form: an upstream that takes one `query` is asked one of `queries` at a time")
        body = {"query": params.queries[0]}
    else:
        body = {"queries": params.queries}
    if params.topk is not None:
        body["topk"] = params.topk
    return _call("POST", params, grant, _encoder.encode({**body, "return_scores": params.return_scores}), JSON_TYPE)


def is_repeatable(params: OutgoingParams) -> bool:
    """Return whether a call that has reached the upstream may be repeated. A retrieval changes nothing there."""
    if params.repeatable is not None:
        return params.repeatable
    return params.method in REPEATABLE_METHODS if isinstance(params, HttpCall) else True


def failed_before(grant: Granted) -> FailedCalls:
    """Return the failed calls of earlier attempts: all of these if the leader does not know, as after a takeover."""
    return FailedCalls(grant.attempt - 1, grant.attempt - 1) if grant.failed_calls is None else grant.failed_calls


def limit_s(params: OutgoingParams, grant: Granted) -> Seconds:
    """Return the limit of one attempt: its own, that of the stage, and what is left of the caller's budget."""
    return min(params.timeout_s or grant.timeout_s, grant.timeout_s, max(grant.budget_s, LEAST_S))


def _call(method: str, params: OutgoingParams, grant: Granted, body: bytes | None, content_type: str) -> OutgoingCall:
    headers = {
        name: SecretName(value.secret) if isinstance(value, SecretReference) else value
        for name, value in params.headers.items()
    }
    seconds = limit_s(params, grant)
    return OutgoingCall(
        method=method,
        url=fill_url(params.url, params.values),
        query=fill_query(params.query, params.values),
        headers=headers,
        body=body,
        content_type=content_type if body is not None else None,
        timeout_s=seconds,
        most_bytes=params.most_bytes,
        tenant=grant.tenant,
        # An upstream that hangs is asked once more, so the first such attempt leaves half of the budget.
        first_byte_s=min(seconds, max(grant.budget_s / 2, LEAST_S)) if not failed_before(grant).silent else None,
    )
