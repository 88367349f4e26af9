"""The routes of leases: acquire amounts of quotas, renew, release and settle."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from services.proxy.http.asgi import HotRoute
from services.proxy.http.call import Call
from services.proxy.http.hot import ACTION_NAME
from services.proxy.http.replies import Reply, problem_reply
from shared.api.leases import AcquireRequest, LeaseFence, LeaseNews, LeaseSettlement, LeaseView, QuotaLease
from shared.runtime.errors import BadRequest, NotFound, QuotaTaken
from shared.runtime.validation import decoded

_json = msgspec.json.Encoder().encode
_acquire = msgspec.json.Decoder(AcquireRequest)
_fence = msgspec.json.Decoder(LeaseFence)
_settlement = msgspec.json.Decoder(LeaseSettlement)

Body = TypeVar("Body")
Headers = tuple[tuple[bytes, bytes], ...]


async def post_acquire(call: Call) -> Reply:
    """POST /v1/acquire: hold amounts of quotas, all or none."""
    call.query()
    tenant = call.tenant()
    request = decoded(_acquire, await call.body(call.proxy.settings.max_body_bytes))
    if not request.quotas:
        raise BadRequest(what='quotas: name at least one, as {"quotas": {"search": 1}}')
    outcome = await call.proxy.leases.acquire(tenant, request, call.gone)
    if isinstance(outcome, LeaseNews):
        taken = QuotaTaken(what=_why(request, outcome), retry_after_s=outcome.retry_after_s)
        reply = problem_reply(taken)
        return reply._replace(headers=reply.headers + _headers(outcome.limits))
    expires_s = outcome.expires_ms / 1000
    left_s = max(0.0, expires_s - call.proxy.clock.unix())
    lease = QuotaLease(lease=outcome.action, fence=outcome.fence, expires_in_s=left_s, expires_at=expires_s)
    return Reply(200, _json(lease), headers=_headers(outcome.limits))


def _why(request: AcquireRequest, news: LeaseNews) -> str:
    amounts = ", ".join(
        f"a learned amount of {name}" if isinstance(amount, str) else f"{amount:g} of {name}"
        for name, amount in request.quotas.items()
    )
    return f"{amounts} could not be granted within {request.wait_s:g} s: {news.reason}"


def _headers(limits: str) -> Headers:
    """Return `RateLimit-Policy` and `RateLimit`; none for a repeat, whose grant has left."""
    policy, _, level = limits.partition("\n")
    return ((b"ratelimit-policy", policy.encode()), (b"ratelimit", level.encode())) if policy else ()


async def post_renew(call: Call) -> Reply:
    """POST /v1/leases/{id}/renew: its time begins anew."""
    lease, given = await _named(call, _fence)
    expires_s = await call.proxy.leases.renew(lease, given.fence)
    left_s = max(0.0, expires_s - call.proxy.clock.unix())
    return Reply(200, _json(QuotaLease(lease=lease, fence=given.fence, expires_in_s=left_s, expires_at=expires_s)))


async def post_release(call: Call) -> Reply:
    """POST /v1/leases/{id}/release: what it held is free. May be repeated for a minute."""
    lease, given = await _named(call, _fence)
    await call.proxy.leases.release(lease, given.fence)
    return Reply(200, _json(_released(lease, given.fence)))


async def post_settle(call: Call) -> Reply:
    """POST /v1/leases/{id}/settle: release it with the amounts that were really used."""
    lease, given = await _named(call, _settlement)
    await call.proxy.leases.release(lease, given.fence, given.used)
    return Reply(200, _json(_released(lease, given.fence)))


def _released(lease: str, fence: int) -> LeaseView:
    return LeaseView(lease=lease, state="released", fence=fence)


async def _named(call: Call, decoder: msgspec.json.Decoder[Body]) -> tuple[str, Body]:
    """Return the lease that the path names, and the body."""
    call.query()
    body = decoded(decoder, await call.body(call.proxy.settings.max_body_bytes))
    return _lease(call), body


def _lease(call: Call) -> str:
    (name,) = call.path_args
    if not ACTION_NAME.fullmatch(name):
        raise NotFound(kind="lease", name=name[:64])
    return name


async def get_lease(call: Call) -> Reply:
    """GET /v1/leases/{id}: its state."""
    call.query()
    return Reply(200, _json(await call.proxy.leases.view(_lease(call))))


LEASE_ROUTES = [
    HotRoute("POST", "/v1/acquire", post_acquire),
    HotRoute("GET", "/v1/leases/{id}", get_lease),
    HotRoute("POST", "/v1/leases/{id}/renew", post_renew),
    HotRoute("POST", "/v1/leases/{id}/release", post_release),
    HotRoute("POST", "/v1/leases/{id}/settle", post_settle),
]
