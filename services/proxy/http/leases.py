"""The routes of leases: acquire amounts of quotas, renew, release and settle."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from services.proxy.http.asgi import HotRoute
from services.proxy.http.call import Call
from services.proxy.http.hot import ACTION_NAME
from services.proxy.http.replies import Reply, problem_reply
from services.proxy.records.lease_service import LeaseUnderWay
from services.proxy.records.lease_states import RELEASED
from shared.api.leases import AcquireRequest, LeaseFence, LeaseNews, LeaseSettlement, LeaseView, QuotaLease, UsedAmount
from shared.bus.held_leases import LeaseCode
from shared.kinds.formulation import Name
from shared.messages.leases import GrantedLease
from shared.runtime.errors import BadRequest, NotFound, QuotaTaken
from shared.runtime.numbers import number
from shared.runtime.validation import UNREADABLE, decoded

_json = msgspec.json.Encoder().encode
_acquire = msgspec.json.Decoder(AcquireRequest)
_fence = msgspec.json.Decoder(LeaseFence)
_settlement = msgspec.json.Decoder(LeaseSettlement)
_amount = msgspec.json.Decoder(UsedAmount)

Body = TypeVar("Body")
Headers = tuple[tuple[bytes, bytes], ...]


class _Sent(msgspec.Struct):
    """The amounts of a settlement, each as it was sent."""

    used: Mapping[Name, msgspec.Raw]


_sent = msgspec.json.Decoder(_Sent)


async def post_acquire(call: Call) -> Reply:
    """POST /v1/acquire: hold amounts of quotas, all or none."""
    call.query()
    tenant = call.tenant()
    request = _asked(await call.body(call.proxy.settings.max_body_bytes))
    return _outcome(call, request, await call.proxy.leases.acquire(tenant, request, call.gone))


def begin_acquire(call: Call, body: bytes) -> BegunAcquire | None:
    """POST /v1/acquire, if the leader is this replica."""
    call.query()
    request = _asked(body)
    acquire = call.proxy.leases.begin(call.tenant(), request)
    if acquire is None or acquire.journaled is None:
        return None
    return BegunAcquire(call, request, acquire, acquire.journaled)


class BegunAcquire:
    """A lease about which the leader decides."""

    __slots__ = ("_acquire", "_call", "_request", "done")

    def __init__(
        self, call: Call, request: AcquireRequest, acquire: LeaseUnderWay, journaled: asyncio.Future[bool]
    ) -> None:
        self._call, self._request, self._acquire, self.done = call, request, acquire, journaled

    def reply(self) -> Reply | None:
        """See `BegunCall`."""
        lease = self._call.proxy.leases.granted(self._acquire)
        return None if lease is None else _granted(self._call, lease)

    async def finish(self) -> Reply:
        """See `BegunCall`."""
        outcome = await self._call.proxy.leases.finish(self._acquire, self._call.gone)
        return _outcome(self._call, self._request, outcome)

    def caller_gone(self) -> None:
        """See `BegunCall`."""
        self._call.proxy.leases.give_up(self._acquire)


def _asked(body: bytes) -> AcquireRequest:
    request = decoded(_acquire, body)
    if not request.quotas:
        raise BadRequest(what='quotas: name at least one, as {"quotas": {"search": 1}}')
    return request


def _outcome(call: Call, request: AcquireRequest, outcome: GrantedLease | LeaseNews) -> Reply:
    if isinstance(outcome, GrantedLease):
        return _granted(call, outcome)
    taken = QuotaTaken(what=_why(request, outcome), retry_after_s=outcome.retry_after_s)
    reply = problem_reply(taken)
    return reply._replace(headers=reply.headers + _headers(outcome.limits))


def _granted(call: Call, granted: GrantedLease) -> Reply:
    expires_s = granted.expires_ms / 1000
    left_s = max(0.0, expires_s - call.proxy.clock.unix())
    lease = QuotaLease(lease=granted.action, fence=granted.fence, expires_in_s=left_s, expires_at=expires_s)
    return Reply(200, _json(lease), headers=_headers(granted.limits))


def _why(request: AcquireRequest, news: LeaseNews) -> str:
    amounts = ", ".join(
        f"a learned amount of {name}" if isinstance(amount, str) else f"{number(amount)} of {name}"
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
    return _released(lease, given.fence)


def begin_release(call: Call, body: bytes) -> BegunRelease | None:
    """POST /v1/leases/{id}/release, if the leader is this replica and has granted the lease."""
    call.query()
    fence, lease = decoded(_fence, body).fence, _lease(call)
    ending = call.proxy.leases.begin_release(lease, fence)
    return None if ending is None else BegunRelease(call, lease, fence, ending)


class BegunRelease:
    """The release of a lease that the leader ends."""

    __slots__ = ("_call", "_fence", "_name", "done")

    def __init__(self, call: Call, lease: str, fence: int, ending: asyncio.Future[LeaseCode | None]) -> None:
        self._call, self._name, self._fence, self.done = call, lease, fence, ending

    def reply(self) -> Reply | None:
        """See `BegunCall`."""
        return _released(self._name, self._fence) if self.done.result() in RELEASED else None

    async def finish(self) -> Reply:
        """See `BegunCall`."""
        await self._call.proxy.leases.finish_release(self._name, self._fence, self.done)
        return _released(self._name, self._fence)

    def caller_gone(self) -> None:
        """The lease is released nevertheless."""


async def post_settle(call: Call) -> Reply:
    """POST /v1/leases/{id}/settle: release it with the amounts that were really used. May be repeated for a minute."""
    call.query()
    given, lease = _settled(await call.body(call.proxy.settings.max_body_bytes)), _lease(call)
    await call.proxy.leases.release(lease, given.fence, given.used)
    return _released(lease, given.fence)


def _settled(body: bytes) -> LeaseSettlement:
    """Return the settlement.

    Raises:
        BadRequest: it is none. An invalid amount is named by its quota: msgspec does not name keys.
    """
    try:
        return decoded(_settlement, body)
    except BadRequest:
        for quota, amount in _amounts_in(body).items():
            decoded(_amount, amount, f"used.{quota}")
        raise


def _amounts_in(body: bytes) -> Mapping[str, msgspec.Raw]:
    try:
        return _sent.decode(body).used
    except UNREADABLE:
        return {}


def _released(lease: str, fence: int) -> Reply:
    return Reply(200, _json(LeaseView(lease=lease, state="released", fence=fence)))


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
    HotRoute("POST", "/v1/acquire", post_acquire, begin_acquire),
    HotRoute("GET", "/v1/leases/{id}", get_lease),
    HotRoute("POST", "/v1/leases/{id}/renew", post_renew),
    HotRoute("POST", "/v1/leases/{id}/release", post_release, begin_release),
    HotRoute("POST", "/v1/leases/{id}/settle", post_settle),
]
