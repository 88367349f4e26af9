"""Slots: a user id, a control group or a private directory. Cells use a slot one after another, never two at once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from services.cpu_manager.sandbox.inside.wire import SlotPlan, WallPlan
from services.cpu_manager.sandbox.instance import discard
from services.cpu_manager.sandbox.walls.cgroups import Group, Hierarchy

_FIRST_UID: Final = 1000
"""First user id of a slot, as seen inside. Below it are the zygote (0) and ids that programs may look up by name."""
_PRIVATE: Final = "/tmp"  # inside: a tmpfs of the cell's own


@dataclass(frozen=True, slots=True)
class Slot:
    """Resources for one cell at a time."""

    plan: SlotPlan
    owner: int
    """The user id that owns the cell's processes, as the host sees it; -1 if it is our own."""
    group: Group | None


class Slots:
    """Creates a slot if none is free. `hierarchy` is None on rungs without control groups."""

    def __init__(self, walls: WallPlan, directory: Path, hierarchy: Hierarchy | None) -> None:
        self._walls = walls
        self._directory = directory
        self._hierarchy = hierarchy
        self._slots: list[Slot] = []
        self._free: list[Slot] = []
        self._home_numbers = itertools.count()
        self._reuse_stopped = False

    def take(self) -> Slot:
        """Return a free slot. The most recently used comes first, because its control group is warm."""
        return self._free.pop() if self._free else self._make(len(self._slots))

    def give(self, slot: Slot) -> None:
        """Free the slot of an ended cell. A real directory is replaced, because a program has owned it."""
        if self._reuse_stopped:
            return
        if not self._walls.namespaces:
            asyncio.get_running_loop().run_in_executor(None, discard, slot.plan.home)
            self._slots.remove(slot)
            slot = replace(slot, plan=replace(slot.plan, home=self._make_home(slot.owner)))
            self._slots.append(slot)
        self._free.append(slot)

    def _make_home(self, owner: int) -> str:
        home = self._directory / f"home-{next(self._home_numbers)}"
        home.mkdir(mode=0o700)
        if owner >= 0:
            os.chown(home, owner, owner)
        return str(home)

    def _make(self, index: int) -> Slot:
        walls = self._walls
        if walls.privileged and _FIRST_UID + index >= walls.uid_count:
            raise OSError(f"the {walls.uid_count} user ids mapped for the sandbox are all in use")
        owner = walls.uid_base + _FIRST_UID + index if walls.privileged else -1
        group = self._hierarchy.make(f"slot-{index}") if self._hierarchy else None
        if walls.namespaces:
            # An ordinary user has one id to map, the zygote's. Cells then create user namespaces of their own.
            plan = SlotPlan(_FIRST_UID + index if walls.privileged else 0, _PRIVATE, 0)
        else:
            plan = SlotPlan(owner, self._make_home(owner), 0)
        slot = Slot(plan, owner, group)
        self._slots.append(slot)
        return slot

    def stop_reuse(self) -> None:
        """Do not prepare slots for reuse any more: `close` removes them."""
        self._reuse_stopped = True

    def close(self) -> None:
        """Remove all slots. Every cell has ended, though not every waiter may have been notified yet."""
        for slot in self._slots:
            if slot.group:
                slot.group.remove()
            if not self._walls.namespaces:
                discard(slot.plan.home)
        if self._hierarchy:
            with contextlib.suppress(OSError):
                self._hierarchy.remove()
        self._slots.clear()
        self._free.clear()
