"""Page of a node's model services: what each engine does, for people and for the proxy.

It is no message of a stream: the hash `serving` has the newest page of each node.
"""

from __future__ import annotations

from typing import Any

import msgspec


class EngineState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One engine of a model service."""

    service: str
    gpus: list[int]
    state: str
    """`shared.policy.serving.model.State`."""
    since: float
    """Unix seconds."""
    why: str = ""
    level: str = ""
    """Level of an engine that sleeps."""
    running: int = 0
    """Actions that use it."""
    waiting: int = 0
    """Actions that wait until it is resident."""
    device_gb: float = 0.0
    """Memory that it takes of each GPU, GB."""
    host_gb: float = 0.0
    """Host memory that it takes while it sleeps, GB."""
    probe_at: float | None = None
    """Unix seconds of the next probe of a quarantined engine."""
    measured_s: dict[str, float] = {}
    """Measured times of its steps: `restore asleep1` -> seconds."""
    address: str = ""
    """Base address for calls, while it is resident. Empty: it is not, or its node publishes no addresses."""


class ShownEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry. Maps of degrees have texts as keys, as JSON has them."""

    backend: str
    api: str
    model: str
    degrees: list[int]
    memory_gb: dict[str, float]
    """`awake`, `asleep`, and `host` where it was declared. Of several degrees, the most."""
    concurrency: int
    priority: int
    min_residency_s: float
    start_s: float
    load_s: float = 60.0
    health: str
    keep_connections: bool = False
    canary: dict[str, Any] = {}
    """Empty: none."""
    env: list[str] = []
    """Names of the variables."""
    command: dict[str, list[str]] = {}
    """Degree -> command. Empty: there is none, or it is not shown."""
    url: dict[str, str] = {}
    """Degree -> address of an engine that runs already. Empty: there is none, or it is not shown."""
    first_gpu: dict[str, int] = {}
    memory_gb_by_degree: dict[str, dict[str, float]] = {}
    """Degree -> `memory_gb` of its engines. Empty: it was declared once for all degrees."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of a reference needs of an entry of the file, without its commands and addresses."""

    degrees: list[int]
    given: bool
    """Its engine runs already, so two services cannot share it."""
    completes: bool
    """Its canary, if any, is a completion."""


class ServiceOffer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model service of a node."""

    backend: str
    api: str
    model: str
    degrees: list[int]
    concurrency: int
    awake_gb: float
    """Of several degrees, the most. `asleep_gb` too."""
    asleep_gb: float = 0.0
    priority: int = 0
    min_residency_s: float = 0.0
    source: str = "file"
    """`file`, or `rest` if REST has declared or changed it."""
    refers_to: str = ""
    """Entry of the file to which a declaration over REST refers."""
    shown: ShownEntry | None = None


class GpuState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU of a node."""

    number: int
    name: str
    memory_gb: float
    measured: bool = False
    """Its memory is measured. False: it is described by a setting."""
    ownership: str = ""
    """`shared.policy.serving.ownership.Ownership`. Empty: no hooks are set, so it is always held."""
    why: str = ""
    """Reason for an ownership that is not `held`, or the fault of a GPU."""


class ServingPage(msgspec.Struct, frozen=True, kw_only=True):
    """All model services of a node."""

    node: str
    incarnation: str
    at: float
    """Unix seconds."""
    services: dict[str, ServiceOffer]
    engines: list[EngineState]
    gpus: list[GpuState]
    file: dict[str, FileEntry] = {}
    """Entries of the operator's file."""
    wrong: list[str] = []
    """Entries of the file that cannot be read. `problems` has the reason of each."""
    problems: dict[str, str] = {}
    """Service -> reason why this node cannot use its entry or its declaration."""
    allows_commands: bool = False
    """Whole entries over REST are accepted."""
    change: int = 0
    """Number of the last change over REST that it has applied."""
