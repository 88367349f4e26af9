"""Declarations over REST: a reference to an entry of the operator's file, or a whole entry.

Law: nothing of a reference reaches an argument of a command, an environment, a path of a request or of the host, or an
address (tests/shared/model_services/test_references.py has a list of attacks). So a reference has numbers, a subset of
the declared degrees, and prompt and answer of a canary, whose request is otherwise that of the file.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec

from shared.kinds.formulation import Name
from shared.messages.model_services import FileEntry
from shared.model_services.checks import check_entry
from shared.model_services.entries import (
    Concurrency,
    Degrees,
    EngineCanary,
    MemoryNeed,
    Priority,
    Residence,
    ServiceEntry,
    read_entry,
)
from shared.runtime.errors import SHOWN_CHARS, BadRequest, Forbidden
from shared.runtime.validation import decoded

T = TypeVar("T")

MOST_BODY: Final = 256 << 10
"""Bytes of a declaration over REST."""
MOST_PROMPT: Final = 65_536
NO_COMMANDS: Final = (
    'a service over REST refers to an entry of the file GPU_MANAGER_SERVICES: {"entry": "judge-a"}. A whole entry has '
    "commands of the host, so it is accepted only if the operator sets GPU_MANAGER_ALLOW_COMMANDS=true at a GPU manager"
)


class CanaryTexts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts of a canary. Its path and the other fields of its request are those of the file."""

    prompt: Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_PROMPT)]
    expect: Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_PROMPT)]


class ServiceReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model service over REST: an entry of the operator's file, and what differs from it."""

    entry: Name
    """Name of the entry. A service of another name has its command and its model."""
    concurrency: Concurrency | None = None
    priority: Priority | None = None
    min_residency_s: Residence | None = None
    canary: CanaryTexts | None = None
    degrees: Degrees | None = None
    """Some of the entry's degrees."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What REST declares under a name: one of both."""

    reference: ServiceReference | None = None
    whole: ServiceEntry | None = None


_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_reference: Final = msgspec.json.Decoder(ServiceReference)


def read_declaration(body: bytes, *, allow_commands: bool) -> Declaration:
    """Return the declaration of a `PUT /v1/services/{name}`. A whole entry is checked.

    Args:
        body: {"entry": "judge-a", "priority": 1}, or a whole entry.
        allow_commands: whether a whole entry is allowed (`GPU_MANAGER_ALLOW_COMMANDS`).

    Raises:
        BadRequest: it cannot be used. The message says what to write.
        Forbidden: it is a whole entry and must not be. The message says what to set.
    """
    if "entry" in decoded(_fields, body):
        return Declaration(reference=decoded(_reference, body))
    if not allow_commands:
        raise Forbidden(what=NO_COMMANDS)
    try:
        return Declaration(whole=read_entry(body))
    except ValueError as error:
        raise BadRequest(what=str(error)) from error


def facts_of(entry: ServiceEntry) -> FileEntry:
    """Return what a check of a reference needs."""
    return FileEntry(
        degrees=sorted(entry.degrees),
        given=entry.url is not None,
        completes=entry.api == "openai" and (entry.canary is None or bool(entry.canary.prompt)),
    )


def check_reference(name: str, reference: ServiceReference, entry: FileEntry) -> None:
    """Check a reference against the entry that it names.

    Raises:
        ValueError: it cannot be used. The message says what to write.
    """
    target = reference.entry[:SHOWN_CHARS]
    if entry.given and name != reference.entry:
        raise ValueError(
            f"entry: the engine of {target!r} runs already, and only one service can use it; name the service {target}"
        )
    degrees = reference.degrees
    if degrees is not None and (len(set(degrees)) != len(degrees) or not set(degrees) <= set(entry.degrees)):
        listed = ", ".join(map(str, entry.degrees))
        raise ValueError(f"degrees: {degrees} should be different numbers out of those of the entry: {listed}")
    if reference.canary is not None and not entry.completes:
        raise ValueError(
            f"canary: that of {target!r} is no completion, so its request is in the file; leave `canary` out here"
        )


def referred(name: str, reference: ServiceReference, entry: ServiceEntry) -> ServiceEntry:
    """Return the entry of a service that refers to `entry`.

    Raises:
        ValueError: it cannot be used. The message says what to write.
    """
    check_reference(name, reference, facts_of(entry))
    changes: dict[str, Any] = {
        field: value
        for field in ("concurrency", "priority", "min_residency_s", "degrees")
        if (value := getattr(reference, field)) is not None
    }
    if reference.canary is not None:
        changes["canary"] = msgspec.structs.replace(
            entry.canary or EngineCanary(prompt="-", expect="-"),
            prompt=reference.canary.prompt,
            expect=reference.canary.expect,
        )
    if reference.degrees is not None:
        for field in ("command", "url", "first_gpu"):
            changes[field] = _at(getattr(entry, field), reference.degrees)
        memory = msgspec.structs.asdict(entry.memory_gb)
        changes["memory_gb"] = MemoryNeed(**{name: _at(given, reference.degrees) for name, given in memory.items()})
    changed = msgspec.structs.replace(entry, **changes)
    check_entry(changed)
    return changed


def _at(given: T, degrees: list[int]) -> T | dict[int, Any]:
    return {degree: given[degree] for degree in degrees if degree in given} if isinstance(given, dict) else given
