"""Errors that callers can act on. Each has a slug, an HTTP status and an instruction (RFC 9457 problem details).

An error's fields are the extension members of its problem document. `PROBLEMS` lets a client create the same class
from the slug.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Final

PROBLEM_TYPE = "https://treadle.example/problems/"
"""Prefix of a problem's `type`. It is an identifier, not an address."""
SHOWN_CHARS: Final = 64
"""Length at which a received text is cut in a message."""


@dataclass(eq=False)
class TreadleError(Exception):
    """Base of every error that Treadle shows to a caller."""

    slug: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"
    status: ClassVar[int] = 500

    def __str__(self) -> str:
        return self.title

    def problem(self) -> dict[str, Any]:
        """Return this error's problem+json document."""
        members = {name: value for name, value in asdict(self).items() if value is not None}
        return {
            **members,
            "type": PROBLEM_TYPE + self.slug,
            "title": self.title,
            "status": self.status,
            "detail": str(self),
        }

    def headers(self) -> dict[str, str]:
        """Return `Retry-After` if the error has a time for a retry."""
        after = getattr(self, "retry_after_s", None)
        return {} if after is None else {"retry-after": str(max(1, round(after)))}


@dataclass(eq=False)
class BadRequest(TreadleError):
    """The body or a parameter is invalid. Correct it; a repeat does not help."""

    slug, title, status = "bad-request", "Bad request", 422
    what: str
    line: int | None = None
    """1-based line of an NDJSON body, where there is one."""

    def __str__(self) -> str:
        return self.what if self.line is None else f"line {self.line}: {self.what}"


@dataclass(eq=False)
class MalformedRequest(TreadleError):
    """The request is not valid HTTP."""

    slug, title, status = "malformed-request", "Malformed request", 400
    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(eq=False)
class Unauthorized(TreadleError):
    """The request has no key, or another one."""

    slug, title, status = "unauthorized", "Unauthorized", 401
    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(eq=False)
class Forbidden(TreadleError):
    """The caller may not do this: it is a foreign page in a browser, no operator, or its key has ended."""

    slug, title, status = "forbidden", "Forbidden", 403
    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(eq=False)
class NotFound(TreadleError):
    """Nothing of this name exists (any more)."""

    slug, title, status = "not-found", "Not found", 404
    kind: str
    name: str
    hint: str | None = None

    def __post_init__(self) -> None:
        self.name = self.name[:SHOWN_CHARS]

    def __str__(self) -> str:
        return f"no {self.kind} {self.name!r}" + (f"; {self.hint}" if self.hint else "")


@dataclass(eq=False)
class Conflict(TreadleError):
    """The request contradicts an earlier accepted one."""

    slug, title, status = "conflict", "Conflict", 409
    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(eq=False)
class QuotaNever(TreadleError):
    """A quota does not exist, is spent, or can never give the amount under its present limits."""

    slug, title, status = "quota-never", "Quota cannot give the amount", 409
    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(eq=False)
class QuotaTaken(TreadleError):
    """Quotas could not give the amounts before the deadline. Retry after `retry_after_s`, if it is known."""

    slug, title, status = "quota-taken", "Quota taken", 429
    what: str
    retry_after_s: float | None = None
    """Earliest time at which the amounts could be given to a caller behind all who wait."""

    def __str__(self) -> str:
        return self.what

    def headers(self) -> dict[str, str]:
        """Return `Retry-After`, rounded up: a retry at that time is not too early."""
        return {} if self.retry_after_s is None else {"retry-after": str(max(1, math.ceil(self.retry_after_s)))}


@dataclass(eq=False)
class LeaseExpired(TreadleError):
    """The lease has ended. Stop what it was for: others may hold its amounts."""

    slug, title, status = "lease-expired", "Lease expired", 409
    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(eq=False)
class Fenced(TreadleError):
    """The fence is not the one of this lease."""

    slug, title, status = "fenced", "Fenced", 409
    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(eq=False)
class Overloaded(TreadleError):
    """A bound was reached, and nothing was accepted. Retry after `retry_after_s`."""

    slug, title, status = "overloaded", "Overloaded", 503
    what: str
    retry_after_s: float = 1.0

    def __str__(self) -> str:
        return f"{self.what}; retry after {self.retry_after_s:g} s"


@dataclass(eq=False)
class TooLarge(TreadleError):
    """The body is larger than this route accepts. Send less at once."""

    slug, title, status = "too-large", "Body too large", 413
    limit_bytes: int

    def __str__(self) -> str:
        return f"the body is larger than the {self.limit_bytes} bytes this call takes"


@dataclass(eq=False)
class Unavailable(TreadleError):
    """A part that this request needs does not answer now. Retry; with a request_id a retry is harmless."""

    slug, title, status = "unavailable", "Unavailable", 503
    what: str
    retry_after_s: float = 1.0

    def __str__(self) -> str:
        return f"{self.what}; retry after {self.retry_after_s:g} s"


@dataclass(eq=False)
class NotResident(TreadleError):
    """The deadline came while the model service was restored. Send the work again after `retry_after_s`, under another
    `request_id`: this one has been answered.
    """

    slug, title, status = "not-resident", "Model service not resident in time", 503
    what: str
    retry_after_s: float
    answer: dict[str, Any] | None = None
    """The masked answer."""

    def __str__(self) -> str:
        return f"{self.what}; send it again after {self.retry_after_s:g} s, under another request_id"

    def headers(self) -> dict[str, str]:
        """Return `Retry-After`, rounded up: a retry at that time is not too early."""
        return {"retry-after": str(max(1, math.ceil(self.retry_after_s)))}


@dataclass(eq=False)
class BadGateway(TreadleError):
    """An inference engine has broken its answer off. A repeat may succeed."""

    slug, title, status = "bad-gateway", "Bad gateway", 502
    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(eq=False)
class DeadlineMissed(TreadleError):
    """The deadline has passed, or is predicted to pass, before the answer."""

    slug, title, status = "deadline-missed", "Deadline missed", 504
    what: str
    queue_s: float | None = None

    def __str__(self) -> str:
        return self.what


PROBLEMS: dict[str, type[TreadleError]] = {
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
        LeaseExpired,
        Fenced,
        Overloaded,
        TooLarge,
        Unavailable,
        NotResident,
        BadGateway,
        DeadlineMissed,
    )
}
"""Slug -> class. Clients create errors with this closed table."""


def from_problem(document: dict[str, Any]) -> TreadleError:
    """Return the error of a problem document. An unknown slug gives a plain TreadleError."""
    error = PROBLEMS.get(str(document.get("type", "")).removeprefix(PROBLEM_TYPE), TreadleError)
    known = {field.name for field in fields(error)}
    return error(**{name: value for name, value in document.items() if name in known})
