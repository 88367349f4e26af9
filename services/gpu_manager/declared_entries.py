"""Entries that this node uses: those of the operator's file, with what REST has declared or changed.

Laws:
  - a whole entry over REST is used only if this node allows commands, whatever another node or the proxy has accepted;
  - an entry of the file is changed only by a reference to itself;
  - a declaration that cannot be used has a problem, and changes nothing else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import NamedTuple

from services.gpu_manager.service_entries import SETTING
from services.gpu_manager.specs import given_engines
from shared.bus.model_services import Declared
from shared.model_services.checks import check_entry
from shared.model_services.entries import ServiceEntry
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


def used_entries(file: Mapping[str, ServiceEntry], declared: Mapping[str, Declared], limits: NodeLimits) -> UsedEntries:
    """Return what a node uses. It looks for the programs of commands on this host. O(entries)."""
    entries = dict(file)
    problems = {name: why for name, entry in file.items() if (why := unusable(entry, limits))}
    for name, one in sorted(declared.items()):
        try:
            entry = _declared_entry(name, one, file, limits)
        except ValueError as error:
            problems[name] = str(error)
            continue
        problems.pop(name, None)
        if why := unusable(entry, limits):
            problems[name] = why
        if not why or name in file:
            entries[name] = entry
    return UsedEntries(entries, problems)


def _declared_entry(name: str, one: Declared, file: Mapping[str, ServiceEntry], limits: NodeLimits) -> ServiceEntry:
    if one.declaration is None:
        raise ValueError("this node cannot read its declaration, because its version differs; declare it again")
    reference, whole = one.declaration.reference, one.declaration.whole
    if reference is not None:
        if reference.entry not in file:
            raise ValueError(f"{SETTING} of this node has no entry {reference.entry[:SHOWN_CHARS]!r}")
        if name in file and name != reference.entry:
            raise ValueError(f"{SETTING} of this node has another entry {name!r}, which it uses")
        return referred(name, reference, file[reference.entry])
    if whole is None:
        raise ValueError("its declaration is empty; declare it again")
    if not limits.allow_commands:
        raise ValueError(NO_COMMANDS)
    if name in file:
        raise ValueError(f"{SETTING} of this node has an entry {name!r}, which it uses")
    check_entry(whole)
    return whole


def unusable(entry: ServiceEntry, limits: NodeLimits) -> str:
    """Return why no engine of an entry can run on this node; empty if one can."""
    gpus = len(limits.device_gb)
    needed_gb = [gb for degree, gb in entry.awake_gb_by.items() if degree <= gpus]
    if not needed_gb:
        return f"it needs {min(entry.degrees)} GPUs, and this node has {gpus}"
    least, most = min(needed_gb), max(limits.device_gb)
    if least > most:
        return f"it needs {least:g} GB of each GPU, and the largest of this node has {most:g} GB"
    for instance in given_engines("", entry):
        if instance.chunk.gpus[-1] >= gpus:
            return f"first_gpu: its engine would be on GPU {instance.chunk.gpus[-1]}, and this node has {gpus} GPUs"
    for degree in entry.degrees:
        program = (entry.command_of(degree) or [""])[0]
        if program and "{" not in program and not _is_found(program, entry):
            return f"command: there is no program {program[:SHOWN_CHARS]!r} on this node"
    return ""


def _is_found(program: str, entry: ServiceEntry) -> bool:
    """Return whether a program exists as its start would look for it: by the PATH that its environment has."""
    return shutil.which(program, path=entry.env.get("PATH", os.environ.get("PATH"))) is not None
