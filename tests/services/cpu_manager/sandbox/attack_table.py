"""Every attack of `attacks` on every rung that this machine has, as one table: `python -m ...attack_table`.

As root it runs them as root and as `nobody`, with user namespaces and without. The table of docs/sandbox.md is its
output; `test_attack_table` holds the one against the other. About a minute.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import Exit, Limits, PythonJob
from services.cpu_manager.sandbox.rungs import NoSandboxError, Rung
from tests.services.cpu_manager.sandbox.attacks import ATTACKS, MIB, Attack, prelude
from tests.services.cpu_manager.sandbox.cells import CORE, nothing_left, pids
from tests.services.cpu_manager.sandbox.conftest import passable
from tests.services.cpu_manager.sandbox.no_namespaces import refuse_namespaces
from tests.services.cpu_manager.sandbox.outside import OutsideResources

_REPOSITORY = Path(__file__).resolve().parents[4]
_MODULE = "tests.services.cpu_manager.sandbox.attack_table"
_OWN_MISTAKE = re.compile(rb"(Name|Type|Attribute|Syntax|Value|Import)\w*Error.*")
_MARK = b"left-by-an-attack"

COLUMNS = ("root, control groups", "root, namespaces", "root, Landlock", "user, namespaces", "user, Landlock")
HELD, REACHED, DOCUMENTED = "held", "REACHED", "documented"
_COUNTED_S = 0.3
"""Time that the cell's init may take to count the tasks of a program and to end it, on a busy machine."""
Results = dict[str, dict[str, str]]
"""Column -> attack -> `available_rungs`, or a description of the reached target."""


async def attack(sandbox: LocalSandbox, outside: OutsideResources, what: Attack) -> str:
    """Run one attack. Check that the outside is unchanged and that the sandbox works as before, whatever it prints."""
    limits = Limits(
        wall_s=what.wall_s, cpu_s=what.cpu_s, memory_bytes=what.memory_mib * MIB, disk_bytes=what.disk_mib * MIB
    )
    counted = sandbox.ladder.chosen is Rung.LANDLOCK and os.geteuid() != 0
    source = prelude(outside, _COUNTED_S if counted else 0.0) + what.source
    ended = await sandbox.run(PythonJob(source=source, limits=limits), CORE)
    reached = [line for line in ended.stdout.decode(errors="replace").splitlines() if line.startswith(REACHED)]
    reached += [f"{REACHED} outside: {name}" for name in outside.damage()]
    reached += await _aftermath(sandbox, ended)
    if mistake := _OWN_MISTAKE.search(ended.stderr):
        raise AssertionError(f"the attack itself is wrong: {what.aim}: {mistake[0].decode()}")
    return "; ".join(reached)[:300] or HELD


async def _aftermath(sandbox: LocalSandbox, ended: Exit) -> list[str]:
    found = [f"{REACHED} our own failure: {ended.detail}"] if ended.ended_by == "lost" else []
    honest = await sandbox.run(PythonJob(source="print(6 * 7)"), CORE)
    if (honest.ended_by, honest.stdout) != ("exit", b"42\n"):
        found.append(f"{REACHED} the next program: {honest}")
    await nothing_left(sandbox)
    if any(_runs(pid) for pid in pids()):
        found.append(f"{REACHED} a life after its end")
    return found


def _runs(pid: int) -> bool:
    """Return True if an attack left this process."""
    try:
        return _MARK in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def column(rung: Rung | None) -> dict[str, str]:
    """Run all attacks on one rung, or on the best one; empty if this user does not have it here."""
    with passable() as folder:
        try:
            sandbox = await LocalSandbox.create(rung=rung, scratch=folder / "scratch")
        except NoSandboxError:
            return {}
        with OutsideResources(folder) as outside:
            try:
                return {what.aim: await attack(sandbox, outside, what) for what in ATTACKS}
            finally:
                await sandbox.close()


async def as_this_user(*, namespaces: bool) -> Results:
    """Return the columns of this process's user. Without namespaces the ladder itself must choose Landlock."""
    user = "root" if os.geteuid() == 0 else "user"
    if not namespaces:
        refuse_namespaces()
        return {"user, Landlock": await column(None)}
    found = {f"{user}, namespaces": await column(Rung.NAMESPACES)}
    if user == "root":
        found["root, control groups"] = await column(Rung.CGROUP_V2) or await column(Rung.CGROUP_V1)
        found["root, Landlock"] = await column(Rung.LANDLOCK)
    return found


def as_others() -> Results:
    """Return all columns. Each runs in a process of its user; only root can run those of other users."""
    ways = [("root", []), ("nobody", []), ("nobody", ["--without-namespaces"])]
    if os.geteuid() != 0:
        ways = [("", []), ("", ["--without-namespaces"])]
    found: Results = {}
    for user, options in ways:
        become = ["-m", "tests.services.cpu_manager.sandbox.passable", user, sys.executable] if user else []
        command = [sys.executable, *become, "-m", _MODULE, "--json", *options]
        done = subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, timeout=280, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{user} {options}: {done.stderr[-3000:]}")
        found |= {name: outcomes for name, outcomes in json.loads(done.stdout).items() if outcomes}
    return found


def cell(what: Attack, name: str, outcome: str) -> str:
    """Return the entry of the table: `documented` for a known weakness, else the outcome."""
    return DOCUMENTED if outcome != HELD and name in what.documented else outcome


def table(found: Mapping[str, Mapping[str, str]]) -> str:
    """Return the table as Markdown. Columns that this machine does not have are empty."""
    lines = [f"| the program tries to | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for what in ATTACKS:
        cells = [cell(what, name, found[name][what.aim]) if name in found else "" for name in COLUMNS]
        lines.append(f"| {what.aim} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table; with `--json` the outcomes of this user's rungs."""
    if "--json" in sys.argv:
        print(json.dumps(asyncio.run(as_this_user(namespaces="--without-namespaces" not in sys.argv))))  # noqa: T201
    else:
        print(table(as_others()))  # noqa: T201


if __name__ == "__main__":
    main()
