"""The services of a stack. To add a service, add a line to this table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.runtime.stack_state import StackError

PROXY = "proxy"
PROXY_PORT = 8700


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A FastAPI app that runs in its own process."""

    name: str
    factory: str
    """``module:callable`` that creates the app from the environment alone."""
    port: int = 0
    """Port unless ``<NAME>_PORT`` is set; 0: any free port, shown by ``treadle status``."""
    host: str = "127.0.0.1"
    secrets: str = ""
    """Prefix of variables that no other process of the stack receives; empty: none."""
    when: Callable[[Mapping[str, str]], bool] = lambda _: True
    """Whether a stack without ``STACK_SERVICES`` runs it, by the environment."""

    def address(self, environ: Mapping[str, str]) -> tuple[str, int]:
        """Return host and port, from ``<NAME>_HOST`` and ``<NAME>_PORT`` if they are set.

        Raises:
            StackError: the port is invalid.
        """
        prefix = self.name.upper()
        port = environ.get(f"{prefix}_PORT", str(self.port))
        if not (port.isdecimal() and int(port) < 1 << 16):
            raise StackError(f"{prefix}_PORT is {port!r}; it must be a number from 0 (any free port) to 65535")
        return environ.get(f"{prefix}_HOST", self.host), int(port)


def has_gpus(environ: Mapping[str, str]) -> bool:
    """Return whether this machine has NVIDIA GPUs, or ``GPU_MANAGER_DEVICES`` describes some."""
    return bool(environ.get("GPU_MANAGER_DEVICES", "").strip()) or has_real_gpus()


def has_real_gpus() -> bool:
    """Return whether this machine has NVIDIA GPUs."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


SERVICES = (
    ServiceSpec(PROXY, "services.proxy.app:create_app", PROXY_PORT),
    ServiceSpec("scaling_planner", "services.scaling_planner.app:create_app"),
    ServiceSpec("cpu_manager", "services.cpu_manager.app:create_app"),
    ServiceSpec("quota_manager", "services.quota_manager.app:create_app", secrets="QUOTA_SECRET_"),
    ServiceSpec("gpu_manager", "services.gpu_manager.app:create_app", when=has_gpus),
    ServiceSpec("trajectory_router", "services.trajectory_router.app:create_app"),
)
SECRET_PREFIXES = tuple(spec.secrets for spec in SERVICES if spec.secrets)
"""Prefixes of variables that are secrets of one service."""


def unused_file(environ: Mapping[str, str]) -> str:
    """Return a warning if ``GPU_MANAGER_SERVICES`` names a file and the stack runs no GPU manager to read it, else "".

    It is no error: hosts with and without GPUs may share one environment. ``STACK_SERVICES`` is a choice of its own.
    """
    file = environ.get("GPU_MANAGER_SERVICES", "").strip()
    if not file or environ.get("STACK_SERVICES") or has_gpus(environ):
        return ""
    return (
        f"GPU_MANAGER_SERVICES names {file}, but this machine has no NVIDIA GPU (/dev/nvidia*), so no GPU manager runs "
        "its services. Install NVIDIA's driver, or describe devices: GPU_MANAGER_DEVICES='[{\"memory_gb\": 24}]'"
    )


def chosen_services(names: str, environ: Mapping[str, str]) -> tuple[ServiceSpec, ...]:
    """Return the services of ``STACK_SERVICES`` (``cpu_manager`` for a node that only executes); all that this machine
    can run if it is empty.

    Raises:
        StackError: a name is not in the table and has no factory.
    """
    if not names:
        return tuple(spec for spec in SERVICES if spec.when(environ))
    known = {spec.name: spec for spec in SERVICES}
    chosen = []
    for entry in names.split(","):
        name, _, factory = entry.strip().partition("=")
        if not factory and name not in known:
            raise StackError(f"STACK_SERVICES names {name!r}; there are {', '.join(known)} (or name=module:callable)")
        chosen.append(ServiceSpec(name, factory) if factory else known[name])
    return tuple(chosen)
