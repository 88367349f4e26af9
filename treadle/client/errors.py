"""Errors of the client: errors that the mesh answers (RFC 9457), by their slug, and errors of the connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

PROBLEM_TYPE = "https://treadle.example/problems/"
"""Prefix of a problem's `type`; an identifier, not an address."""
AWAY = frozenset({502, 503, 504})
"""Statuses by which a gateway between client and mesh reports that the mesh does not answer."""
SHOWN_CHARS = 200
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions that a decoder raises for received bytes."""


class TreadleError(Exception):
    """Base of every error of the client."""

    slug: ClassVar[str] = "internal"
    """Last part of the problem's `type`."""

    def __init__(self, detail: str, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.problem = dict(problem or {})
        """The problem document of the mesh; empty if the mesh did not answer."""


class BadRequest(TreadleError):
    """The body or a parameter is invalid. A retry does not change it."""

    slug = "bad-request"


class MalformedRequest(TreadleError):
    """The request breaks a rule of HTTP."""

    slug = "malformed-request"


class Unauthorized(TreadleError):
    """The key of the request is missing or wrong."""

    slug = "unauthorized"


class Forbidden(TreadleError):
    """The host or origin of the request is not allowed, or its key has ended."""

    slug = "forbidden"


class NotFound(TreadleError):
    """Nothing of that name exists, or it has expired."""

    slug = "not-found"


class Conflict(TreadleError):
    """The request contradicts what was accepted before."""

    slug = "conflict"


class QuotaNever(TreadleError):
    """A quota does not exist, is spent, or can never give the amount under its present limits."""

    slug = "quota-never"


class QuotaTaken(TreadleError):
    """Quotas could not give the amounts within the time that the caller has waited."""

    slug = "quota-taken"

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which the amounts could be given at the earliest; None: not known."""
        seconds = self.problem.get("retry_after_s")
        return float(seconds) if isinstance(seconds, int | float) else None


class LeaseLost(TreadleError):
    """A lease has ended while its holder needed it: others may hold its amounts."""

    slug = "lease-expired"


class Fenced(LeaseLost):
    """The fence is not the one of this lease."""

    slug = "fenced"


class TooLarge(TreadleError):
    """The body is larger than this call takes."""

    slug = "too-large"


class DeadlineMissed(TreadleError):
    """The deadline has passed, or is predicted to pass, without an answer."""

    slug = "deadline-missed"


class NotResident(TreadleError):
    """The deadline came while the model service was restored. The problem's `answer` is the masked answer."""

    slug = "not-resident"


class BadGateway(TreadleError):
    """An inference engine has broken its answer off."""

    slug = "bad-gateway"


class InvalidUrl(TreadleError, ValueError):
    """The address of the proxy is not one of a server."""

    slug = "invalid-url"


class Transient(TreadleError):
    """An error that ends by itself. The client retries the call."""

    @property
    def retry_after_s(self) -> float:
        """Seconds to wait before the next try."""
        seconds = self.problem.get("retry_after_s")
        return float(seconds) if isinstance(seconds, int | float) else 0.0


class Overloaded(Transient):
    """A bound was reached; nothing was accepted."""

    slug = "overloaded"


class Unavailable(Transient):
    """The mesh, or a part that the request needs, does not answer."""

    slug = "unavailable"


class Unexpected(TreadleError):
    """The server answered something that this client does not know. A retry does not change it."""

    slug = "unexpected"


BY_SLUG: dict[str, type[TreadleError]] = {
    error.slug: error
    for error in (
        TreadleError,
        BadRequest,
        MalformedRequest,
        Unauthorized,
        Forbidden,
        NotFound,
        Conflict,
        QuotaNever,
        QuotaTaken,
        LeaseLost,
        Fenced,
        TooLarge,
        NotResident,
        BadGateway,
        DeadlineMissed,
        Overloaded,
        Unavailable,
    )
}
"""Slug -> class, for every error of the mesh."""


def error_of(status: int, body: bytes, url: str, retry_after: str | None = None) -> TreadleError:
    """Return the error of a reply.

    Args:
        status: of the reply; 400 or more.
        body: a problem document if the mesh itself answered.
        url: address of the call, for the error's text.
        retry_after: the reply's header.
    """
    document = _problem(body)
    if document is None:
        if status in AWAY:
            return Unavailable(f"{url} answered {status}", {"retry_after_s": _seconds(retry_after)})
        shown = body[:SHOWN_CHARS].decode("utf-8", "replace").strip()
        return Unexpected(f"{url} answered {status}, and not as Treadle does: is it the proxy's address? {shown}")
    detail = str(document.get("detail") or document.get("title") or status)
    known = BY_SLUG.get(slug_of(document))
    if known is not None:
        return known(detail, document)
    return Unavailable(detail, document) if status in AWAY else Unexpected(f"{url}: {detail}", document)


def slug_of(problem: Mapping[str, Any]) -> str:
    """Return the last part of a problem's `type`."""
    return str(problem.get("type", "")).removeprefix(PROBLEM_TYPE)


def _problem(body: bytes) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE:
        return None
    return document if "type" in document and "status" in document else None


def _seconds(header: str | None) -> float:
    return float(header) if header is not None and header.isdecimal() else 1.0
