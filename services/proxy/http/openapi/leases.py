"""Leases in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from services.proxy.http.openapi.kinds import struct_schemas
from services.proxy.http.openapi.parts import TENANT, body, responses
from services.proxy.http.openapi.schemas import Schema, ref
from shared.api.leases import LEASE_TYPES

_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "Id of the lease, from the answer to its acquire.",
    "schema": {"type": "string"},
}
_LIMIT_HEADERS = {
    "RateLimit-Policy": {
        "description": "Limits of the quotas, as in draft-ietf-httpapi-ratelimit-headers.",
        "schema": {"type": "string"},
    },
    "RateLimit": {"description": "What is free of each limit.", "schema": {"type": "string"}},
}


def lease_paths() -> dict[str, Any]:
    """Paths by template."""
    acquired = responses({200: ("The caller holds the amounts", "QuotaLease")}, 409, 413, 422, 429, 503)
    for status in ("200", "429"):
        acquired[status]["headers"] = acquired[status].get("headers", {}) | _LIMIT_HEADERS
    return {
        "/v1/acquire": {
            "post": {
                "tags": ["quotas"],
                "operationId": "acquire",
                "summary": "Hold amounts of quotas, all or none",
                "description": "For callers that call an external API themselves. The answer comes when the amounts "
                "are granted, in the order of all work, or when it is certain that they cannot be granted in time: 429 "
                "with `Retry-After`. A caller without a `request_id` that closes its connection is not granted "
                "anything. One with a `request_id` can repeat the request, and finds its lease.",
                "parameters": [TENANT],
                "requestBody": body("AcquireRequest"),
                "responses": acquired,
            }
        },
        "/v1/leases/{id}": {
            "get": {
                "tags": ["quotas"],
                "operationId": "get_lease",
                "summary": "State of a lease, until a minute after its end",
                "parameters": [_ID],
                "responses": responses({200: ("Its state", "LeaseView")}, 404, 422, 503),
            }
        },
        "/v1/leases/{id}/renew": _ending("renew_lease", "Begin the time of a lease anew", "LeaseFence", "QuotaLease"),
        "/v1/leases/{id}/release": _ending(
            "release_lease", "End a lease. May be repeated for a minute", "LeaseFence", "LeaseView"
        ),
        "/v1/leases/{id}/settle": _ending(
            "settle_lease",
            "End a lease with the amounts that were really used. May be repeated with the same amounts for a minute",
            "LeaseSettlement",
            "LeaseView",
        ),
    }


def _ending(name: str, summary: str, sent: str, received: str) -> dict[str, Any]:
    return {
        "post": {
            "tags": ["quotas"],
            "operationId": name,
            "summary": summary,
            "parameters": [_ID],
            "requestBody": body(sent),
            "responses": responses({200: ("Done", received)}, 404, 409, 413, 422, 503),
        }
    }


def lease_schemas() -> dict[str, Schema]:
    """Bodies of the routes of leases."""
    schemas = struct_schemas(LEASE_TYPES)
    quotas = schemas["AcquireRequest"]["properties"]["quotas"]
    schemas["AcquireRequest"]["properties"]["quotas"] = {
        **ref("QuotaAmounts"),
        "description": quotas.get("description", ""),
    }
    return schemas
