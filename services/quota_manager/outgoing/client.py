"""Outgoing calls: what is sent where, over redirects, with secrets at the last moment.

Laws:
  - each hop of a call is judged: its URL, and each address that a socket connects to;
  - a secret is sent in the first request only, to an origin that it names. No redirect carries it;
  - of the caller's headers, only those of `ABROAD` follow a redirect to another origin;
  - an answer or an error shows no secret of its call;
  - calls share a connection only if they are of the same tenant and carry the same secrets.

A redirect is followed if the method is GET or HEAD and there is no body, at most `MOST_REDIRECTS` times; else the
redirect is the answer. It is also the answer if it leads a call with a secret to the same origin: it would be refused
there without the secret, and its caller can correct the URL.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from services.quota_manager.outgoing.addresses import Addresses
from services.quota_manager.outgoing.calls import HeaderValue, OutgoingAnswer, OutgoingCall
from services.quota_manager.outgoing.errors import (
    BrokenAnswer,
    ForbiddenAddress,
    InvalidCall,
    NoFirstByte,
    NoMemory,
    NotConnected,
    OutgoingError,
)
from services.quota_manager.outgoing.headers import ABROAD, bounded, checked_headers, secrets_of
from services.quota_manager.outgoing.masking import Mask
from services.quota_manager.secrets import Secret, Secrets
from services.quota_manager.urls import InvalidUrl, UrlTarget, read_url, redirected
from shared.runtime.byte_budget import ByteShare
from shared.runtime.http import HttpClient, HttpFailure, HttpLimits, HttpReply, HttpRequest, open_http
from shared.runtime.http_addresses import Resolve

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
FOLLOWED: Final = frozenset({"GET", "HEAD"})
"""Methods whose redirects are followed: a repeat of them changes nothing."""
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
MOST_REDIRECTS: Final = 5

_ERRORS: Final[Mapping[str, type[OutgoingError]]] = {
    "address": ForbiddenAddress,
    "connect": NotConnected,
    "first-byte": NoFirstByte,
    "answer": BrokenAnswer,
    "memory": NoMemory,
}


@dataclass(slots=True)
class _Progress:
    """One call on its way."""

    call: OutgoingCall
    target: UrlTarget
    headers: dict[str, tuple[str, HeaderValue]] = field(repr=False)
    secrets: Mapping[str, Secret] = field(repr=False)
    """Secrets of the next request, by lower-case name of the header; empty after a redirect."""
    mask: Mask
    is_secret: bool
    """The first request carried a secret."""
    start: float
    redirects: int = 0

    def request(self) -> HttpRequest:
        """Return the next request. It contains the values of secrets: pass it on and store it nowhere."""
        headers = [
            (shown, value if isinstance(value, str) else self.secrets[name].header_value())
            for name, (shown, value) in self.headers.items()
        ]
        partition = "\n".join([self.call.tenant, *sorted(secret.name for secret in self.secrets.values())])
        return HttpRequest(self.call.method, self.target.url, headers, self.call.body, self.call.tenant, partition)

    def error(self, failure: HttpFailure) -> OutgoingError:
        """Return the error for a failed request. The call was sent if an earlier request was."""
        stage = "first-byte" if failure.stage == "connect" and self.redirects else failure.stage
        return _ERRORS[stage](self.mask.text(f"{self.call.method} {self.target.shown}: {failure.reason}"))

    def follow(self, target: UrlTarget) -> None:
        """Go on to the target of a redirect."""
        if target.origin != self.target.origin:
            self.headers = {name: each for name, each in self.headers.items() if name in ABROAD}
        self.headers = {name: each for name, each in self.headers.items() if name not in self.secrets}
        self.secrets = {}
        self.target = target
        self.redirects += 1


class Outgoing:
    """Client of external services. `open_outgoing` opens it."""

    def __init__(self, http: HttpClient, addresses: Addresses, secrets: Secrets) -> None:
        self._http = http
        self._addresses = addresses
        self._secrets = secrets

    async def call(self, call: OutgoingCall, memory: ByteShare | None = None) -> OutgoingAnswer:
        """Make a call and return its answer, of any status, within `call.timeout_s` seconds.

        Sends one request, and one more for each redirect that is followed. Repeats nothing.

        Args:
            call: what to send.
            memory: a share without bytes, which keeps those of the answer. None: memory is not bounded.
        Raises:
            InvalidCall: the call is wrong, or may not use a secret. Nothing was sent.
            ForbiddenAddress: it leads to an address that must not be called.
            NotConnected: nothing was sent.
            NoFirstByte: it was sent, and no answer has begun.
            BrokenAnswer: the answer is cut, invalid or larger than `call.most_bytes`.
            NoMemory: there was no memory for a large answer.
        """
        progress = self._begin(call)
        while True:
            self._judge(progress)
            reply = await self._http.exchange(progress.request(), self._limits(progress, memory))
            if isinstance(reply, HttpFailure):
                raise progress.error(reply)
            target = _redirect(progress, reply)
            if target is None:
                return _answer(progress, reply)
            if isinstance(target, HttpFailure):
                raise progress.error(target)
            progress.follow(target)

    def _begin(self, call: OutgoingCall) -> _Progress:
        if call.method not in METHODS:
            raise InvalidCall(f"the method should be one of {', '.join(sorted(METHODS))}")
        if not (0 < call.timeout_s < math.inf and call.most_bytes >= 0):
            raise InvalidCall("the time limit should be a positive number of seconds, and the size limit not negative")
        if call.first_byte_s is not None and not 0 < call.first_byte_s < math.inf:
            raise InvalidCall("the time limit of the first byte should be a positive number of seconds")
        wrong = ""
        try:
            target = read_url(call.url, call.query)
        except InvalidUrl as error:
            wrong = str(error)
        if wrong:
            raise InvalidCall(wrong)
        headers = checked_headers(call.headers, call.content_type)
        secrets = secrets_of(headers, self._secrets, call.tenant, target.origin)
        mask = Mask(secret.value.reveal() for secret in secrets.values())
        now = asyncio.get_running_loop().time()
        return _Progress(call, target, headers, secrets, mask, bool(secrets), now)

    def _judge(self, progress: _Progress) -> None:
        """Raise `ForbiddenAddress` if the host is a refused address. Names are judged when they are resolved."""
        target = progress.target
        if target.is_address and (reason := self._addresses.refusal(target.host)):
            raise progress.error(HttpFailure("address", reason))

    def _limits(self, progress: _Progress, memory: ByteShare | None) -> HttpLimits:
        call = progress.call
        left_s = max(0.0, progress.start + call.timeout_s - asyncio.get_running_loop().time())
        first_byte_s = left_s if call.first_byte_s is None else min(left_s, call.first_byte_s)
        unread = REDIRECTS if _is_followed(call) else frozenset[int]()
        return HttpLimits(left_s, first_byte_s, call.most_bytes, unread, memory)


@asynccontextmanager
async def open_outgoing(
    *,
    secrets: Secrets,
    allow_addresses: Iterable[str] = (),
    connections: int = 1024,
    resolve: Resolve | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Outgoing]:
    """Open the client for as long as the context lasts.

    Args:
        secrets: see `load_secrets`.
        allow_addresses: networks (CIDR) that may be called although they are not public.
        connections: most at once. Further calls wait for one, in their own time limit.
        resolve: from a name to its addresses; None: the operating system's resolver.
        tls: certificates to trust; None: those of the operating system.
    Raises:
        ValueError: an entry of `allow_addresses` is not a network.
    """
    addresses = Addresses(allow_addresses)
    async with open_http(addresses.refusal, resolve=resolve, tls=tls, connections=connections) as http:
        yield Outgoing(http, addresses, secrets)


def _is_followed(call: OutgoingCall) -> bool:
    return call.method in FOLLOWED and call.body is None


def _redirect(progress: _Progress, reply: HttpReply) -> UrlTarget | HttpFailure | None:
    """Return the target of a redirect to follow; None: the reply is the answer.

    A failure is returned, because the variables of a raising function, which can be logged, would have the location.
    """
    if reply.status not in REDIRECTS or not _is_followed(progress.call):
        return None
    location = next((value for name, value in reply.headers if name.lower() == "location"), None)
    if location is None:
        return None
    if progress.mask.is_in(location):
        return HttpFailure("address", "it redirects to a URL that contains the call's secret")
    try:
        target = redirected(progress.target, location)
    except InvalidUrl as error:
        return HttpFailure("answer", f"it redirects to a URL that cannot be called: {error}")
    if progress.is_secret and progress.target.scheme == "https" and target.scheme == "http":
        return HttpFailure("address", "it redirects a call with a secret from https to http")
    if progress.secrets and target.origin == progress.target.origin:
        return None
    if progress.redirects == MOST_REDIRECTS:
        return HttpFailure("answer", f"it redirects more than {MOST_REDIRECTS} times")
    return target


def _answer(progress: _Progress, reply: HttpReply) -> OutgoingAnswer:
    now = asyncio.get_running_loop().time()
    mask = progress.mask
    return OutgoingAnswer(
        status=reply.status,
        headers=bounded((mask.text(name), mask.text(value)) for name, value in reply.headers),
        body=mask.body(reply.body),
        url=mask.text(progress.target.shown),
        elapsed_s=now - progress.start,
        first_byte_s=reply.head_at_s - progress.start,
    )
