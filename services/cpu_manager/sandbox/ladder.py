"""Selection of this node's sandbox rung: builds the walls of each rung around a trivial program until one works."""

from __future__ import annotations

import asyncio
import os
import pwd
from pathlib import Path
from typing import Final

from services.cpu_manager.sandbox.inside import wire
from services.cpu_manager.sandbox.instance import Instance
from services.cpu_manager.sandbox.job_run import JobRun
from services.cpu_manager.sandbox.protocol import Limits
from services.cpu_manager.sandbox.rungs import Ladder, NoSandboxError, Rung, RungTrial
from services.cpu_manager.sandbox.slots import Slots
from services.cpu_manager.sandbox.spares import Spares
from services.cpu_manager.sandbox.toolchain import Toolchain, closed_parent, open_to_others
from services.cpu_manager.sandbox.transport import sealed_file
from services.cpu_manager.sandbox.usage import GroupSampler, TreeSampler
from services.cpu_manager.sandbox.walls import landlock
from services.cpu_manager.sandbox.walls.cgroup_v1 import HierarchyV1
from services.cpu_manager.sandbox.walls.cgroup_v2 import HierarchyV2
from services.cpu_manager.sandbox.walls.cgroups import Hierarchy
from services.cpu_manager.sandbox.zygotes import LAUNCHER, ZygoteError, Zygotes

_UID_BASE: Final = 1_900_000_000
"""Far from accounts and from the subordinate ids of other tools. Every block stays below the sign bit."""
_UID_COUNT: Final = 65_536
OUTSIDE: Final = "/treadle-host"
"""Directory of the view for paths of the host below /tmp. An operator may show /opt, so it is elsewhere."""
_PROBE_LIMITS: Final = Limits(wall_s=10.0, cpu_s=5.0, memory_bytes=256 << 20, disk_bytes=1 << 20)


def wall_plan(rung: Rung, tools: Toolchain, instance: Instance, harnesses: tuple[str, ...]) -> wire.WallPlan:
    """Return the walls of one rung in the form that zygotes read."""
    privileged = os.geteuid() == 0
    base, count = uid_range(instance.uid_block) if privileged else (0, 0)
    seen = _path_inside if rung.namespaces else str
    return wire.WallPlan(
        namespaces=rung.namespaces,
        privileged=privileged,
        uid_base=base,
        uid_count=count,
        control_groups=rung.control_groups,
        root=instance.view_root,
        binds=tuple((path, seen(path)) for path in tools.binds),
        links=tools.links,
        texts=tools.texts,
        covered=tuple((seen(path), path) for path in tools.binds if seen(path) != path),
        interpreter_path=tools.interpreter_path,
        preload=(),
        harnesses=harnesses,
        environment=tools.environment,
        executable=tools.interpreter,
    )


def _path_inside(path: str) -> str:
    """Return where a host path appears in a zygote's view.

    Every cell covers /tmp with its private directory. Host paths in /tmp (for example the environment of a checkout)
    are bound elsewhere, and each cell binds them back to their place, because imported packages store their paths.
    """
    return f"{OUTSIDE}{path}" if path.startswith("/tmp/") else path


def uid_range(block: int) -> tuple[int, int]:
    """Return the first user id for slots and their number, among the ids that exist in our own user namespace.

    A user namespace without the block's ids has one range, which all of its managers share.
    """
    extents = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    wanted = _UID_BASE + block * _UID_COUNT
    for first, _, count in extents:
        if first <= wanted and wanted + _UID_COUNT <= first + count:
            return wanted, _UID_COUNT
    first, _, count = max(extents, key=lambda extent: extent[2])
    taken = min(count // 2, _UID_COUNT)
    return first + count - taken, taken


async def choose_rung(instance: Instance, tools: Toolchain, forced: Rung | None) -> Ladder:
    """Try the rungs from the best down (or only `forced`). Raise `NoSandboxError` if none works."""
    abi = landlock.abi()
    trials: list[RungTrial] = []
    for rung in (forced,) if forced else tuple(Rung):
        reason = await _try(rung, tools, instance, abi)
        trials.append(RungTrial(rung, reason))
        if not reason:
            return Ladder(rung, tuple(trials), abi, user_name())
    raise NoSandboxError(tuple(trials))


def user_name() -> str:
    """Return the name of the manager's user, for people."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


async def _try(rung: Rung, tools: Toolchain, instance: Instance, abi: int) -> str:
    """Build the rung's walls around `true`. Return what failed; empty if it worked."""
    if refusal := _precondition(rung, tools, instance, abi):
        return refusal
    try:
        hierarchy = make_hierarchy(rung, instance)
    except OSError as error:
        return str(error)
    plan = wall_plan(rung, tools_for(rung, tools), instance, ())
    zygotes = Zygotes(plan, instance.directory, 1)
    slots = Slots(plan, instance.directory, hierarchy)
    try:
        return await _probe(zygotes, slots)
    except (ZygoteError, OSError) as error:
        return str(error)
    finally:
        await zygotes.close()
        await asyncio.to_thread(slots.close)


def tools_for(rung: Rung, tools: Toolchain) -> Toolchain:
    """Return what this rung can show of the toolchain. On the Landlock rung root's programs run as another user."""
    return open_to_others(tools) if rung is Rung.LANDLOCK and os.geteuid() == 0 else tools


def _precondition(rung: Rung, tools: Toolchain, instance: Instance, abi: int) -> str:
    if rung is Rung.CGROUP_V1 and os.geteuid() != 0:
        return "cgroup v1 can be divided by root alone"
    if rung is not Rung.LANDLOCK:
        return ""
    if abi < landlock.SCOPED_ABI:
        return f"Landlock ABI {abi} cannot scope signals; {landlock.SCOPED_ABI} (Linux 6.12) can"
    if os.geteuid() == 0:
        instance.make_passable()
        for path in (tools.interpreter, str(instance.directory / "slot")):
            if closed := closed_parent(path):
                return f"programs run as a user of their own, who cannot pass {closed} on the way to {path}"
    return ""


def make_hierarchy(rung: Rung, instance: Instance) -> Hierarchy | None:
    """Create the control groups of this manager, and record them for a later sweep; None on rungs without groups."""
    if not rung.control_groups:
        return None
    make = HierarchyV1.make_for if rung is Rung.CGROUP_V1 else HierarchyV2.make_for
    hierarchy: Hierarchy = make(instance.name)
    instance.record_groups(hierarchy.directories)
    return hierarchy


async def _probe(zygotes: Zygotes, slots: Slots) -> str:
    zygote = await zygotes.get(LAUNCHER)
    spares = Spares(slots)
    spare = spares.take(zygote, _PROBE_LIMITS.disk_bytes)
    group = spare.slot.group
    if group:
        group.set_limits(_PROBE_LIMITS.memory_bytes, 8)
    cores = tuple(os.sched_getaffinity(0))
    start_request = wire.pack(wire.StartRequest(cores, _PROBE_LIMITS.disk_bytes, 0, 5, _PROBE_LIMITS.pids, 0))
    fetch_request = wire.pack(wire.FetchRequest((), 0))
    program_file = sealed_file("program", wire.pack(wire.ExecProgram(("true",), {}, {}, ())))
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sampler = GroupSampler(group) if group else TreeSampler(_PROBE_LIMITS.memory_bytes)
        run = JobRun(spare, _PROBE_LIMITS, sampler, len(cores))
        ended = await run.run((start_request, fetch_request), null, program_file, reports=False)
    finally:
        spares.discard(spare)
        os.close(program_file)
        os.close(null)
    if ended.ended_by == "exit" and ended.exit_code == 0:
        return ""
    return (
        f"`true` ended by {ended.ended_by} {ended.exit_code}: {ended.detail or ended.stderr.decode(errors='replace')}"
    )
