"""From a reply that is no success to the error it stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from shared.runtime.errors import PROBLEM_TYPE, PROBLEMS, TreadleError, Unavailable, from_problem

AWAY = frozenset({502, 503, 504})
"""Statuses by which a gateway between us and the mesh says that the mesh does not answer."""
SHOWN_CHARS = 200


@dataclass(eq=False)
class Unexpected(TreadleError):
    """The server answered something that this client has no class for. Repeating it changes nothing."""

    slug: ClassVar[str] = "unexpected"
    title: ClassVar[str] = "Unexpected answer"
    status: ClassVar[int] = 502
    what: str

    def __str__(self) -> str:
        return self.what


def error_of(status: int, body: bytes, url: str, retry_after: str | None = None) -> TreadleError:
    """The error that a reply stands for.

    Args:
        status: of the reply; 400 or more.
        body: a problem document where the mesh itself answered.
        url: what was asked, for people.
        retry_after: the reply's header.
    """
    document = _problem(body)
    if document is None:
        if status in AWAY:
            return Unavailable(what=f"{url} answered {status}", retry_after_s=_seconds(retry_after))
        shown = body[:SHOWN_CHARS].decode("utf-8", "replace").strip()
        return Unexpected(what=f"{url} answered {status}, and not as Treadle does: is it the proxy's address? {shown}")
    detail = str(document.get("detail") or document.get("title") or status)
    slug = str(document.get("type", "")).removeprefix(PROBLEM_TYPE)
    if slug not in PROBLEMS:
        return Unavailable(what=detail) if status in AWAY else Unexpected(what=f"{url}: {detail}")
    try:
        return from_problem(document)
    except TypeError:  # a class of ours without its members: another version of Treadle
        return Unexpected(what=f"{url}: {detail}")


def _problem(body: bytes) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
    return document if "type" in document and "status" in document else None


def _seconds(header: str | None) -> float:
    return float(header) if header is not None and header.isdecimal() else 1.0
