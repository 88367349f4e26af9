"""Errors a caller can act on: each knows its slug, its HTTP status and what to do (RFC 9457 problem details).

The fields of an error are the extension members of its problem document. One place renders them (`shared.runtime.app`,
`shared.asgi`), and `PROBLEMS` lets a client rebuild the same class from the slug.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import msgspec

PROBLEM_TYPE = "https://treadle.example/problems/"
"""Prefix of a problem's `type`; an identifier, not an address."""


@dataclass(eq=False)
class TreadleError(Exception):
    """Base of every error that Treadle shows to a caller."""

    slug: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"
    status: ClassVar[int] = 500

    def __str__(self) -> str:
        return self.title

    def problem(self) -> dict[str, Any]:
        """The problem+json document of this error."""
        members = {name: value for name, value in asdict(self).items() if value is not None}
        return {
            **members,
            "type": PROBLEM_TYPE + self.slug,
            "title": self.title,
            "status": self.status,
            "detail": str(self),
        }

    def headers(self) -> dict[str, str]:
        """`Retry-After` where the error says when to come back."""
        after = getattr(self, "retry_after_s", None)
        return {} if after is None else {"retry-after": str(max(1, round(after)))}


@dataclass(eq=False)
class BadRequest(TreadleError):
    """The body or a parameter does not mean anything. Mend it; repeating it changes nothing."""

    slug, title, status = "bad-request", "Bad request", 422
    what: str
    line: int | None = None
    """1-based line of an NDJSON body, where there is one."""

    def __str__(self) -> str:
        return self.what if self.line is None else f"line {self.line}: {self.what}"


UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What a decoder raises over somebody's bytes."""


def unreadable(error: Exception, what: str = "") -> BadRequest:
    """What a decoder's complaint means to the caller: no text, no JSON, or JSON with a field that does not fit.

    Args:
        error: one of `UNREADABLE`.
        what: what was being read; nothing means the whole body.
    """
    named, where = what or "the body", f"{what}: " if what else ""
    match error:
        case msgspec.ValidationError():
            return BadRequest(what=f"{where}{error}")
        case UnicodeDecodeError():
            bad = error.object[error.start]
            return BadRequest(what=f"{named} is not UTF-8: byte 0x{bad:02x} at {error.start}; encode text as UTF-8")
        case RecursionError():
            return BadRequest(what=f"{named} has too many lists and objects inside each other")
    hint = " (or a text holds half of a surrogate pair)" if "truncated" in str(error) else ""
    return BadRequest(what=f"{named} is not JSON: {error}{hint}")


@dataclass(eq=False)
class MalformedRequest(TreadleError):
    """The request breaks HTTP's own rules."""

    slug, title, status = "malformed-request", "Malformed request", 400
    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(eq=False)
class Forbidden(TreadleError):
    """A browser may have sent this on behalf of a foreign page."""

    slug, title, status = "forbidden", "Forbidden", 403
    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(eq=False)
class NotFound(TreadleError):
    """Nothing of that name is here (any more)."""

    slug, title, status = "not-found", "Not found", 404
    kind: str
    name: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"no {self.kind} {self.name!r}" + (f"; {self.hint}" if self.hint else "")


@dataclass(eq=False)
class Conflict(TreadleError):
    """What is asked contradicts what was accepted before."""

    slug, title, status = "conflict", "Conflict", 409
    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(eq=False)
class Overloaded(TreadleError):
    """A bound was reached before anything was accepted. Come back after `retry_after_s`; nothing was lost."""

    slug, title, status = "overloaded", "Overloaded", 503
    what: str
    retry_after_s: float = 1.0

    def __str__(self) -> str:
        return f"{self.what}; retry after {self.retry_after_s:g} s"


@dataclass(eq=False)
class TooLarge(TreadleError):
    """The body is larger than this door takes. Send less at once."""

    slug, title, status = "too-large", "Body too large", 413
    limit_bytes: int

    def __str__(self) -> str:
        return f"the body is larger than the {self.limit_bytes} bytes this call takes"


@dataclass(eq=False)
class Unavailable(TreadleError):
    """A part this request needs does not answer now. Retry; a request_id makes the retry harmless."""

    slug, title, status = "unavailable", "Unavailable", 503
    what: str
    retry_after_s: float = 1.0

    def __str__(self) -> str:
        return f"{self.what}; retry after {self.retry_after_s:g} s"


@dataclass(eq=False)
class DeadlineMissed(TreadleError):
    """The deadline came, or is predicted to come, before an answer."""

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
        Forbidden,
        NotFound,
        Conflict,
        Overloaded,
        TooLarge,
        Unavailable,
        DeadlineMissed,
    )
}
"""Slug -> class: the closed table a client rebuilds errors from."""


def from_problem(document: dict[str, Any]) -> TreadleError:
    """The error a problem document stands for; an unknown slug becomes a plain TreadleError."""
    error = PROBLEMS.get(str(document.get("type", "")).removeprefix(PROBLEM_TYPE), TreadleError)
    known = {field.name for field in fields(error)}
    return error(**{name: value for name, value in document.items() if name in known})
