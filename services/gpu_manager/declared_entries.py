"""Entries that this node uses: those of the operator's file, with what REST has declared or changed.

Laws:
  - a whole entry over REST is used only if this node allows commands, whatever another node or the proxy has accepted;
  - an entry of the file is changed only by a reference to itself;
  - an entry or a declaration that cannot be used has a problem. It stops no other one, and it is tried again at each
    heartbeat: what it lacks on this host may come.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from services.gpu_manager.service_entries import SETTING
from shared.bus.model_services import Declared
from shared.model_services.checks import check_entry
from shared.model_services.device_fit import missing_devices
from shared.model_services.entries import FileEntries, ServiceEntry
from shared.model_services.programs import missing_program
from shared.model_services.references import NO_COMMANDS, referred
from shared.runtime.errors import SHOWN_CHARS


class NodeLimits(NamedTuple):
    """What a node can and may do."""

    allow_commands: bool
    device_gb: tuple[float, ...]
    """Memory of each GPU."""


class UsedEntries(NamedTuple):
    """Entries that a node uses, and reasons why it cannot use others."""

    entries: dict[str, ServiceEntry]
    problems: dict[str, str]


def used_entries(
    file: FileEntries,
    declared: Mapping[str, Declared],
    limits: NodeLimits,
    using: Mapping[str, ServiceEntry] = MappingProxyType({}),
) -> UsedEntries:
    """Return what a node uses. It looks for the programs of commands on this host. O(entries).

    `using`: entries that are used already. They are not checked again, so a folder of programs that is away for a
    moment stops no engine.
    """
    wanted, problems = dict(file.entries), dict[str, str]()
    for name, one in sorted(declared.items()):
        try:
            wanted[name] = _declared_entry(name, one, file, limits)
        except ValueError as error:
            problems[name] = str(error)
    entries = dict[str, ServiceEntry]()
    for name, entry in wanted.items():
        why = "" if using.get(name) == entry else unusable(entry, limits)
        if why:
            problems[name] = why
        else:
            entries[name] = entry
    return UsedEntries(entries, file.problems | problems)


def _declared_entry(name: str, one: Declared, file: FileEntries, limits: NodeLimits) -> ServiceEntry:
    if one.declaration is None:
        raise ValueError("this node cannot read its declaration, because its version differs; declare it again")
    reference, whole = one.declaration.reference, one.declaration.whole
    own = name in file.entries or name in file.problems
    if reference is not None:
        if why := file.problems.get(reference.entry):
            raise ValueError(f"{SETTING} of this node has a wrong entry {reference.entry[:SHOWN_CHARS]!r}: {why}")
        if reference.entry not in file.entries:
            raise ValueError(f"{SETTING} of this node has no entry {reference.entry[:SHOWN_CHARS]!r}")
        if own and name != reference.entry:
            raise ValueError(f"{SETTING} of this node has another entry {name!r}, which it uses")
        return referred(name, reference, file.entries[reference.entry])
    if whole is None:
        raise ValueError("its declaration is empty; declare it again")
    if not limits.allow_commands:
        raise ValueError(NO_COMMANDS)
    if own:
        raise ValueError(f"{SETTING} of this node has an entry {name!r}, which it uses")
    check_entry(whole)
    return whole


def unusable(entry: ServiceEntry, limits: NodeLimits) -> str:
    """Return why no engine of an entry can run on this node; empty if one can."""
    return missing_devices(entry, limits.device_gb) or missing_program(entry)
