"""Allowed bodies of calls: every field is listed by its name, and all others are rejected.

The engine decodes JSON by Go's rules: names in any case, and the last of repeated ones counts. So a body is decoded
here, checked against these types, and encoded again. The engine gets only what was decoded here. An omitted field has
Go's zero value, and every default below is that value.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from services.engine_proxy.http1 import Rejected

NODE_LABEL = "treadle.node"

S = TypeVar("S", bound=msgspec.Struct)

Count = Annotated[int, msgspec.Meta(ge=-1, le=1 << 62)]
Cpuset = Annotated[str, msgspec.Meta(pattern=r"^[0-9,-]*\Z", max_length=4096)]
ContainerPath = Annotated[str, msgspec.Meta(pattern=r"^/[^:\x00]*\Z", max_length=4096)]
"""A path inside the container."""

Capability = Literal[
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
    "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
]  # fmt: skip
"""Capabilities that the engine gives by default. Adding one restores a dropped one, and nothing more."""


class _Strict(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, rename="pascal"):
    """Base: fields in the engine's spelling, no unknown ones."""


class Resources(_Strict):
    """Body of `update`, and part of `create`."""

    cpuset_cpus: Cpuset = ""
    cpuset_mems: Cpuset = ""
    cpu_shares: Count = 0
    cpu_period: Count = 0
    cpu_quota: Count = 0
    nano_cpus: Count = 0
    memory: Count = 0
    memory_swap: Count = 0
    memory_reservation: Count = 0
    memory_swappiness: Count | None = None
    pids_limit: Count | None = None


class VolumeOptions(_Strict):
    """Labels of a volume that is created with its container. No driver, because it could mount the host's folders."""

    labels: dict[str, str] = {}


class VolumeMount(_Strict):
    """A volume: one of our own (`is_agent_volume`), or without a name a new one. Nothing else can be mounted."""

    type: Literal["volume"]
    target: ContainerPath
    source: str = ""
    read_only: bool = False
    volume_options: VolumeOptions | None = None


class LogConfig(_Strict):
    """Logs that stay on the host. Other drivers send them to addresses."""

    type: Literal["", "none", "local", "json-file"] = ""
    config: dict[Literal["max-size", "max-file", "compress"], str] = {}


class RestartPolicy(_Strict):
    """No restart: an ended container stays ended."""

    name: Literal["", "no"] = ""
    maximum_retry_count: Literal[0] = 0


class Ulimit(_Strict):
    name: str
    soft: Count
    hard: Count


_TMPFS_WORD = "(rw|ro|exec|noexec|nosuid|nodev|(size|mode|nr_inodes)=[0-9]+[kmg]?)"
TMPFS = rf"^({_TMPFS_WORD}(,{_TMPFS_WORD})*)?\Z"
"""Options of an in-memory file system. Others could be mount flags: `bind`, `remount`, `shared`, `suid`."""


class HostConfig(Resources):
    """A container's relation to the host. No host paths, devices, namespaces, ports, profiles or runtimes."""

    network_mode: Literal["", "none", "bridge", "default"] = ""
    ipc_mode: Literal["", "none", "private"] = ""
    cgroupns_mode: Literal["", "private"] = ""
    privileged: bool = False
    cap_drop: list[str] = []
    cap_add: list[Capability] = []
    security_opt: list[Literal["no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"]] = []
    readonly_rootfs: bool = False
    init: bool | None = None
    auto_remove: bool = False
    mounts: list[VolumeMount] = []
    tmpfs: dict[ContainerPath, Annotated[str, msgspec.Meta(pattern=TMPFS)]] = {}
    storage_opt: dict[Literal["size"], Annotated[str, msgspec.Meta(pattern=r"^[0-9]+[bkmgBKMG]?\Z")]] = {}
    shm_size: Count = 0
    ulimits: list[Ulimit] = []
    oom_score_adj: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    log_config: LogConfig | None = None
    restart_policy: RestartPolicy | None = None

    def __post_init__(self) -> None:
        if self.privileged:
            raise ValueError("Expected `Privileged` to be false")


class Healthcheck(_Strict):
    """The image's own health check, switched off."""

    test: list[Literal["NONE"]] = []


class NewContainer(_Strict):
    """Body of `create`."""

    image: Annotated[str, msgspec.Meta(min_length=1)]
    labels: dict[str, str]
    host_config: HostConfig | None = None
    cmd: list[str] | None = None
    entrypoint: list[str] | None = None
    env: list[str] | None = None
    user: str = ""
    working_dir: str = ""
    hostname: str = ""
    tty: bool = False
    open_stdin: bool = False
    stdin_once: bool = False
    attach_stdin: bool = False
    attach_stdout: bool = False
    attach_stderr: bool = False
    network_disabled: bool = False
    stop_signal: str = ""
    stop_timeout: int | None = None
    healthcheck: Healthcheck | None = None


class NewExec(_Strict):
    """Body of `exec`: a process without more rights than its container."""

    cmd: list[str]
    env: list[str] | None = None
    user: str = ""
    working_dir: str = ""
    privileged: bool = False
    tty: bool = False
    attach_stdin: bool = False
    attach_stdout: bool = False
    attach_stderr: bool = False
    container: str = ""
    """aiodocker repeats the path's container here, and also in the next field. The engine ignores both."""
    detach_keys: Literal[""] = msgspec.field(name="detachKeys", default="")

    def __post_init__(self) -> None:
        if self.privileged:
            raise ValueError("Expected `Privileged` to be false")


class StartExec(_Strict):
    detach: bool = False
    tty: bool = False


class EmptyBody(_Strict):
    """No body, or an empty object."""


def is_agent_volume(volume: str, node: str) -> bool:
    """Return whether this is a volume that the node's manager fills with what its containers need.

    The engine creates it without options when a container first mounts it. Compose gives volumes other names.
    """
    return re.fullmatch(rf"treadle-agent-{re.escape(node.lower())}-[0-9a-f]{{12}}", volume, re.ASCII) is not None


def check_owned(new: NewContainer, node: str) -> None:
    """Check that a new container belongs to the node.

    Raises:
        Rejected: its label names another node, or it mounts a volume that is not ours.
    """
    if new.labels.get(NODE_LABEL) != node:
        raise Rejected(403, f"a container needs the label {NODE_LABEL}={node}")
    for mount in new.host_config.mounts if new.host_config else []:
        if mount.source and not is_agent_volume(mount.source, node):
            allowed = f"treadle-agent-{node.lower()}-<12 hexadecimal digits>, or none for a fresh one"
            raise Rejected(403, f"the volume {mount.source[:80]} cannot be mounted; allowed here: {allowed}")


def decode_body(body: bytes, kind: type[S]) -> S:
    """Decode the body as one of the types above.

    Raises:
        Rejected: it is not JSON, repeats a name, or has something that this type does not allow.
    """
    try:
        json.loads((body or b"{}").decode(), object_pairs_hook=_unique_names)
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise Rejected(403, f"{error}; allowed here: {_allowed(kind, str(error))}") from None
    except (ValueError, RecursionError) as error:
        raise Rejected(400, f"the body is not plain JSON: {error}") from None


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice in one object")
    return found


def _allowed(kind: type[msgspec.Struct], message: str) -> str:
    """Return the allowed fields of the object that the error is about."""
    place = HostConfig if kind is NewContainer and "$.HostConfig" in message else kind
    return ", ".join(place.__struct_encode_fields__) or "nothing"
