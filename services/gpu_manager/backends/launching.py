"""Parameters of an engine's start: its command, its environment and its port."""

from __future__ import annotations

import itertools
import os
import random
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from services.gpu_manager.backends.protocol import EngineError

PORTS: Final = range(20_000, 32_000)
"""Ports for engines. Linux takes ports from 32768 on for outgoing connections: one of those could be gone before the
engine binds it, which takes a minute with some engines."""

INHERITED: Final = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "TREADLE_SERVICE",
})  # fmt: skip
"""Variables of the manager that its engines get. `TREADLE_SERVICE`: by it the supervisor finds orphans."""
INHERITED_PREFIXES: Final = (
    "LC_", "CUDA_", "NVIDIA_", "NCCL_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "TORCH", "PYTORCH_",
    "TRITON_", "OMP_", "MKL_", "PYTHON", "VLLM_", "SGLANG_", "SGL_", "FLASHINFER_",
)  # fmt: skip
"""Prefixes of such variables. All else stays here: addresses with passwords, keys, and proxies with credentials."""
_PLACE: Final = re.compile(r"\{(port|devices|degree|model)\}")


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """Command of one engine. `{port}`, `{devices}`, `{degree}` and `{model}` are filled in; other braces stay."""

    command: tuple[str, ...]
    model: str
    devices: tuple[int, ...]
    """GPU numbers of the chunk, in NVML's order. Their count is the degree."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to what engines inherit. The same places are filled in."""

    def argv(self, port: int) -> list[str]:
        """Return the command with its places filled in."""
        return [self._filled(part, port) for part in self.command]

    def environment(self, port: int) -> dict[str, str]:
        """Return the environment. The chunk decides `CUDA_VISIBLE_DEVICES`, whatever `env` says."""
        return {
            **inherited(os.environ),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # CUDA's default order is by speed, and NVML's by bus
            **{name: self._filled(value, port) for name, value in self.env.items()},
            "CUDA_VISIBLE_DEVICES": self._devices,
        }

    @property
    def _devices(self) -> str:
        return ",".join(map(str, self.devices))

    def _filled(self, text: str, port: int) -> str:
        places = {
            "port": str(port),
            "devices": self._devices,
            "degree": str(len(self.devices)),
            "model": self.model,
        }
        return _PLACE.sub(lambda found: places[found[1]], text)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that engines get. The others are declared as `env` of a service."""
    return {name: value for name, value in environ.items() if name in INHERITED or name.startswith(INHERITED_PREFIXES)}


class Ports:
    """TCP ports for the engines of one manager. Two engines that start at once never get the same one.

    An engine on another's port would pass for it: its health would be read as the other's.
    """

    def __init__(self, ports: range = PORTS) -> None:
        self._ports = ports
        self._taken: set[int] = set()

    def take(self) -> int:
        """Return a port at which nothing listens, and reserve it.

        Raises:
            EngineError: there is none.
        """
        first = random.randrange(len(self._ports))  # managers of one machine try different ones
        for port in itertools.chain(self._ports[first:], self._ports[:first]):
            if port not in self._taken and _can_bind(port):
                self._taken.add(port)
                return port
        raise EngineError(f"no port from {self._ports[0]} to {self._ports[-1]} is free for an engine")

    def reserve(self, port: int) -> None:
        """Reserve the port of an engine that runs."""
        self._taken.add(port)

    def release(self, port: int) -> None:
        """Return a port. Safe to call again."""
        self._taken.discard(port)


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))  # on every address: a listener on any of them is in the way
        except OSError:
            return False
        return True
