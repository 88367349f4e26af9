"""Configuration of a trajectory's container: `EnvironmentSpec` and our walls in the engine's terms."""

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
"""Labels beside the owner's: a later manager of the node needs them to adopt a container."""
CREATION: Final = "treadle.creation"
"""A label: the creation attempt of the container. Its name may belong to its successor while its id is not known."""

AGENT_DIRECTORY: Final = "/run/treadle/agent"
"""Path of the agent's interpreter, read-only (`packing`)."""
SOCKETS: Final = "/run/treadle/sockets"
"""A tmpfs of the container's own."""
SOCKET: Final = f"{SOCKETS}/agent"
"""Path at which the agent listens."""

AGENT_PIDS: Final = 4
"""Processes beyond the trainer's limit: the agent, and its relay if the connection goes through the engine."""
_MIB: Final = 1 << 20
_TMPFS: Final = "rw,nosuid,nodev,mode=1777"


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A container before its creation."""

    owner: Owner
    trajectory: str
    spec: EnvironmentSpec
    image: Image
    cores: frozenset[int]
    command: list[str]
    """Command of its first program, the agent."""
    volume: str
    """Name of the volume with its interpreter."""
    creation: str
    """Unique to this container."""


def name_of(owner: Owner, trajectory: str) -> str:
    """Return the container's name. It is unique per trajectory and mesh, so that a second one cannot be created."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", f"treadle-{owner.mesh[:8]}-{owner.node}-{trajectory}")


def workdir_of(spec: EnvironmentSpec, image: Image) -> str:
    """Return the absolute directory in which commands start."""
    return str(PurePosixPath("/", image.workdir, spec.workdir))


def config_of(container: ContainerSpec, *, sized: bool) -> dict[str, Any]:
    """Return the body of `POST /containers/create`. `sized`: the storage driver is asked to limit what it writes."""
    return {
        "Image": container.image.id,
        "Entrypoint": container.command,
        "Cmd": [],
        "WorkingDir": workdir_of(container.spec, container.image),
        "Labels": labels_of(container),
        # The engine would run the image's own health check inside, even while the container is frozen.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {**_walls(container), **_limits(container, sized=sized)},
    }


def labels_of(container: ContainerSpec) -> dict[str, str]:
    spec = msgspec.json.encode(container.spec).decode()
    return {**container.owner.labels, TRAJECTORY: container.trajectory, SPEC: spec, CREATION: container.creation}


def spec_from(labels: Mapping[str, str]) -> EnvironmentSpec:
    """Return the specification of a container.

    Raises:
        ValueError: its labels are not ours, or of another version.
    """
    try:
        return msgspec.json.decode(labels[SPEC], type=EnvironmentSpec)
    except (KeyError, msgspec.DecodeError) as error:
        raise ValueError(f"the label {SPEC} cannot be read: {error}") from error


def _walls(container: ContainerSpec) -> dict[str, Any]:
    """Return its isolation: no network, rights, devices or other processes; its own files, perhaps read-only."""
    workdir = workdir_of(container.spec, container.image)
    mounts: list[dict[str, Any]] = [
        {"Type": "volume", "Source": container.volume, "Target": AGENT_DIRECTORY, "ReadOnly": True}
    ]
    tmpfs = {SOCKETS: f"{_TMPFS},noexec,size=64k"}
    if container.spec.read_only:
        tmpfs["/tmp"] = f"{_TMPFS},exec,size={container.spec.disk_mb}m"
        if workdir not in {"/", "/tmp"}:
            # A new volume begins with the image's files at this path; a tmpfs would hide them.
            mounts.append({"Type": "volume", "Target": workdir})
    return {
        "NetworkMode": "bridge" if container.spec.network else "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": container.spec.read_only,
        "Init": False,
        "RestartPolicy": {"Name": "no"},
        "Mounts": mounts,
        "Tmpfs": tmpfs,
    }


def _limits(container: ContainerSpec, *, sized: bool) -> dict[str, Any]:
    """Return its limits: memory without swap, processes, cores; disk in total if possible, else per file."""
    memory, disk = container.spec.memory_mb * _MIB, container.spec.disk_mb * _MIB
    return {
        "CpusetCpus": ",".join(str(core) for core in sorted(container.cores)),
        "Memory": memory,
        "MemorySwap": memory,
        "PidsLimit": container.spec.pids + AGENT_PIDS,
        "StorageOpt": {"size": f"{container.spec.disk_mb}m"} if sized else {},
        "Ulimits": [
            {"Name": "fsize", "Soft": disk, "Hard": disk},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        # The first program's output is written to a file of the host.
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "64k", "max-file": "1"}},
    }
