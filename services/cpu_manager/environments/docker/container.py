"""What a trajectory's container is told to be: the engine's words for `EnvironmentSpec` and for our walls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec

from services.cpu_manager.environments.docker.claim import Owner
from services.cpu_manager.environments.docker.images import Image
from shared.messages.environments import EnvironmentSpec

TRAJECTORY: Final = "treadle.trajectory"
SPEC: Final = "treadle.spec"
"""Labels beside the owner's: what a later life of the node's manager needs to take a container up."""
MAKING: Final = "treadle.making"
"""A label: by which making of ours it was created. Its name may be that of its successor, when its id is not known."""

CARRIED: Final = "/run/treadle/carried"
"""Where the resident's interpreter lies, read-only (`packing`)."""
SOCKETS: Final = "/run/treadle/sockets"
"""Memory of the container's own."""
SOCKET: Final = f"{SOCKETS}/resident"
"""Where the resident listens."""

RESIDENT_PIDS: Final = 4
"""Beside what the trainer asks for: the resident, and its way to us where that leads through the engine."""
_MIB: Final = 1 << 20
_TMPFS: Final = "rw,nosuid,nodev,mode=1777"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A container before it is created."""

    owner: Owner
    trajectory: str
    spec: EnvironmentSpec
    image: Image
    cores: frozenset[int]
    command: list[str]
    """Of its first program, the resident."""
    volume: str
    """That holds its interpreter."""
    making: str
    """No other container's."""


def name_of(owner: Owner, trajectory: str) -> str:
    """The container's name: one for a trajectory of a mesh, so that a second one cannot be made by mistake."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", f"treadle-{owner.mesh[:8]}-{owner.node}-{trajectory}")


def workdir_of(spec: EnvironmentSpec, image: Image) -> str:
    """Where commands start, absolute."""
    return str(PurePosixPath("/", image.workdir, spec.workdir))


def config_of(plan: Plan, *, sized: bool) -> dict[str, Any]:
    """The body of `POST /containers/create`. `sized`: the storage driver is asked to bound what it writes."""
    return {
        "Image": plan.image.id,
        "Entrypoint": plan.command,
        "Cmd": [],
        "WorkingDir": workdir_of(plan.spec, plan.image),
        "Labels": labels_of(plan),
        # The engine would run the image's own check inside, also while everything there is frozen.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {**_walls(plan), **_limits(plan, sized=sized)},
    }


def labels_of(plan: Plan) -> dict[str, str]:
    spec = msgspec.json.encode(plan.spec).decode()
    return {**plan.owner.labels, TRAJECTORY: plan.trajectory, SPEC: spec, MAKING: plan.making}


def spec_from(labels: Mapping[str, str]) -> EnvironmentSpec:
    """What a container was made of.

    Raises:
        ValueError: its labels are none of ours, or of another version.
    """
    try:
        return msgspec.json.decode(labels[SPEC], type=EnvironmentSpec)
    except (KeyError, msgspec.DecodeError) as error:
        raise ValueError(f"the label {SPEC} cannot be read: {error}") from error


def _walls(plan: Plan) -> dict[str, Any]:
    """No network, rights, devices or other processes; its own files, which may be closed to writing."""
    workdir = workdir_of(plan.spec, plan.image)
    mounts: list[dict[str, Any]] = [{"Type": "volume", "Source": plan.volume, "Target": CARRIED, "ReadOnly": True}]
    tmpfs = {SOCKETS: f"{_TMPFS},noexec,size=64k"}
    if plan.spec.read_only:
        tmpfs["/tmp"] = f"{_TMPFS},exec,size={plan.spec.disk_mb}m"
        if workdir not in {"/", "/tmp"}:
            # A new volume begins with what the image has there; a tmpfs would hide it.
            mounts.append({"Type": "volume", "Target": workdir})
    return {
        "NetworkMode": "bridge" if plan.spec.network else "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": plan.spec.read_only,
        "Init": False,
        "RestartPolicy": {"Name": "no"},
        "Mounts": mounts,
        "Tmpfs": tmpfs,
    }


def _limits(plan: Plan, *, sized: bool) -> dict[str, Any]:
    """Memory without swap, processes, cores; what it may write: in all where the storage driver can, else a file."""
    memory, disk = plan.spec.memory_mb * _MIB, plan.spec.disk_mb * _MIB
    return {
        "CpusetCpus": ",".join(str(core) for core in sorted(plan.cores)),
        "Memory": memory,
        "MemorySwap": memory,
        "PidsLimit": plan.spec.pids + RESIDENT_PIDS,
        "StorageOpt": {"size": f"{plan.spec.disk_mb}m"} if sized else {},
        "Ulimits": [
            {"Name": "fsize", "Soft": disk, "Hard": disk},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        # What is written to the first program's output lands in a file of the host.
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "64k", "max-file": "1"}},
    }
