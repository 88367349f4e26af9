"""Rungs of the sandbox ladder, best first: what each enforces and what it needs (docs/sandbox.md)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Rung(StrEnum):
    """A way to isolate model-written code on this node."""

    CGROUP_V2 = "cgroup-v2"
    CGROUP_V1 = "cgroup-v1"
    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"

    @property
    def namespaces(self) -> bool:
        return self is not Rung.LANDLOCK

    @property
    def control_groups(self) -> bool:
        return self in {Rung.CGROUP_V1, Rung.CGROUP_V2}


_WALLS = (
    "own pid, mount, ipc, uts, network and user namespaces",
    "read-only view of the toolchain alone",
    "private tmpfs of limited size",
    "no capabilities, no new privileges",
    "system-call filter, /proc/sys read-only",
)
ENFORCES: dict[Rung, tuple[str, ...]] = {
    Rung.CGROUP_V2: (*_WALLS, "memory and processes of the tree by control group (v2), exactly"),
    Rung.CGROUP_V1: (*_WALLS, "memory, CPU time and processes of the tree by control group (v1), exactly"),
    Rung.NAMESPACES: (
        *_WALLS,
        "memory and CPU time of the tree by a watchdog (20 ms)",
        "processes of the tree by RLIMIT_NPROC",
    ),
    Rung.LANDLOCK: (
        "read-only access to the toolchain alone (Landlock)",
        "private directory, its size by a watchdog (20 ms)",
        "signals, tracing and abstract sockets kept inside (Landlock scopes)",
        "no sockets but pairs, no System V objects",
        "modes and times of its own files alone, set by init",
        "no capabilities, no new privileges",
        "system-call filter",
        "memory and CPU time of the tree by a watchdog (20 ms)",
        "processes of the tree by RLIMIT_NPROC for root, by init (10 ms) for an ordinary user",
    ),
}


@dataclass(frozen=True, slots=True)
class RungTrial:
    """The try of one rung on this node."""

    rung: Rung
    reason: str
    """Empty if it worked; else what failed."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """Enforceable rung of this node, found by trying. Printed at start and shown in `/v1/nodes`."""

    chosen: Rung
    trials: tuple[RungTrial, ...]
    landlock_abi: int
    user: str

    def describe(self) -> dict[str, Any]:
        """Return JSON-able data: the rung, what it enforces, and why better ones were not chosen."""
        return {
            "rung": self.chosen.value,
            "enforces": list(ENFORCES[self.chosen]),
            "landlock_abi": self.landlock_abi,
            "user": self.user,
            "refused": {trial.rung.value: trial.reason for trial in self.trials if trial.reason},
        }

    def __str__(self) -> str:
        lines = [f"sandbox rung {self.chosen} ({self.user}): " + "; ".join(ENFORCES[self.chosen])]
        lines += [f"  not {trial.rung}: {trial.reason}" for trial in self.trials if trial.reason]
        return "\n".join(lines)


class NoSandboxError(RuntimeError):
    """No rung works on this node, so it runs no code. The message lists the remedies."""

    def __init__(self, trials: tuple[RungTrial, ...]) -> None:
        tried = "\n".join(f"  {trial.rung}: {trial.reason}" for trial in trials)
        super().__init__(
            "this node cannot isolate model-written code, so it runs none. Tried:\n"
            f"{tried}\n"
            "Remedies: `sysctl -w user.max_user_namespaces=15000` (and on Ubuntu"
            " `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`); in a container, `--privileged`, or"
            " `--security-opt seccomp=unconfined --security-opt systempaths=unconfined`; or Linux >= 6.12 with"
            " `lsm=landlock,...` on its command line."
        )
