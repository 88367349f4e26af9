"""The agent's own interpreter, mounted into every container of a node from one read-only volume.

An image need not have Python, a shell or a suitable C library, and its contents cannot break the agent. The volume
costs a container only a mount, and all containers share its pages in memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import sys
from pathlib import Path
from typing import Any, Final

from services.cpu_manager.environments.docker import packing
from services.cpu_manager.environments.docker.claim import Owner
from services.cpu_manager.environments.docker.container import AGENT_DIRECTORY, SOCKET
from services.cpu_manager.environments.docker.engine import ContainerEngine, EngineRefusal
from services.cpu_manager.environments.docker.images import Image
from services.cpu_manager.environments.protocol import RuntimeUnavailable

_PACK_S: Final = 60.0

PYTHON: Final = [
    f"{AGENT_DIRECTORY}/{packing.LOADER}",
    "--library-path",
    f"{AGENT_DIRECTORY}/lib",
    f"{AGENT_DIRECTORY}/{packing.INTERPRETER}",
    *("-I", "-S", "-X", "utf8"),
]
"""Command of the interpreter, inside a container."""

COMMAND: Final = [*PYTHON, f"{AGENT_DIRECTORY}/{packing.PROGRAM}", SOCKET]
"""Command of the agent."""

_AGENT: Final = Path(__file__).parents[1] / "agent"
"""Package of the agent."""


class AgentVolume:
    """The volume of one node; filled once per manager process, when the first image is available."""

    def __init__(self, engine: ContainerEngine, owner: Owner) -> None:
        self._engine = engine
        self._owner = owner
        # The mesh is part of the digest, so that another mesh's node of this name removes only its own volume.
        digest = hashlib.sha256(f"{owner.mesh} {sys.version}".encode() + _sources()).hexdigest()
        self._prefix = f"treadle-agent-{owner.node.lower()}-"
        self.name = self._prefix + digest[:12]
        self._earlier: set[str] = set()
        self._filling: asyncio.Task[None] | None = None

    async def ready(self, image: Image) -> str:
        """Return the volume's name when it is filled. `image`: any image that the engine has.

        Cancelling a waiter does not cancel the copy: the engine would continue it, and its container would remain.

        Raises:
            RuntimeUnavailable: it could not be filled.
        """
        if self._filling is None or _failed(self._filling):
            self._filling = asyncio.create_task(self._fill(image), name="fill the agent volume")
        await asyncio.shield(self._filling)
        return self.name

    def forget(self) -> None:
        """Fill the volume again for the next container, because somebody removed it."""
        if self._filling is not None and self._filling.done():
            self._filling = None

    def notice(self, mounts: list[dict[str, Any]]) -> None:
        """Record the mounts of an earlier manager's container: they may include a volume of another version."""
        self._earlier |= {mount["Name"] for mount in mounts if mount.get("Name", "").startswith(self._prefix)}

    async def remove(self) -> None:
        """Remove the volume and those of earlier managers, unless a container still mounts them."""
        if self._filling is not None:
            await asyncio.wait({self._filling})
            self._filling = None
        for volume in {self.name, *self._earlier}:
            await self._engine.remove_volume(volume)

    async def _fill(self, image: Image) -> None:
        """Fill the volume through a container that is never started: the engine unpacks archives into its volumes."""
        archive = await _pack()
        name = f"treadle-{self._owner.node}-agent-volume-{secrets.token_hex(4)}"
        config: dict[str, Any] = {
            "Image": image.id,
            "Entrypoint": COMMAND,
            "Labels": self._owner.labels,
            "HostConfig": {
                "NetworkMode": "none",
                "Mounts": [
                    {
                        "Type": "volume",
                        "Source": self.name,
                        "Target": AGENT_DIRECTORY,
                        "VolumeOptions": {"Labels": self._owner.labels},
                    }
                ],
            },
        }
        try:
            container = await self._engine.create(name, config)
            try:
                await self._engine.put(container, AGENT_DIRECTORY, archive)
            finally:
                await self._engine.remove(container)
        except EngineRefusal as refusal:
            raise RuntimeUnavailable(f"the agent's volume cannot be filled: {refusal.message}") from refusal


def _sources() -> bytes:
    """Return the agent's source, about 30 KB."""
    return b"".join(module.read_bytes() for module in sorted(_AGENT.glob("*.py")))


def _failed(copy: asyncio.Task[None]) -> bool:
    return copy.done() and (copy.cancelled() or copy.exception() is not None)


async def _pack() -> bytes:
    """Return the archive with this interpreter and the agent.

    Raises:
        RuntimeUnavailable: this interpreter cannot be packed.
    """
    # By its real path: a virtual environment's interpreter is a link, and the packer does not need that environment.
    command = [os.path.realpath(sys.executable), "-I", "-S", packing.__file__]  # noqa: ASYNC240 - a readlink
    packer = await asyncio.create_subprocess_exec(
        *command,
        str(_AGENT.parent),
        f"{_AGENT.name}.serving",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_PACK_S):
            archive, errors = await packer.communicate()
    except TimeoutError as error:
        raise RuntimeUnavailable(f"this interpreter could not be packed within {_PACK_S:g} s") from error
    finally:
        if packer.returncode is None:
            packer.kill()
            await packer.wait()
    if packer.returncode != 0:
        raise RuntimeUnavailable(f"this interpreter cannot be packed: {errors[-2000:].decode(errors='replace')}")
    return archive
