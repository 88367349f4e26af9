"""The resident's own interpreter, mounted into every container of a node from one read-only volume.

An image need not have Python, a shell or a suitable C library, and its contents cannot break the resident. The volume
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

from services.cpu_manager.environments.bundle import resident
from services.cpu_manager.environments.docker import packing
from services.cpu_manager.environments.docker.claim import Owner
from services.cpu_manager.environments.docker.container import CARRIED, SOCKET
from services.cpu_manager.environments.docker.engine import Engine, EngineRefusal
from services.cpu_manager.environments.docker.images import Image
from services.cpu_manager.environments.protocol import RuntimeUnavailable

_PACK_S: Final = 60.0

PYTHON: Final = [
    f"{CARRIED}/{packing.LOADER}",
    "--library-path",
    f"{CARRIED}/lib",
    f"{CARRIED}/{packing.INTERPRETER}",
    *("-I", "-S", "-X", "utf8"),
]
"""Command of the interpreter, inside a container."""

COMMAND: Final = [*PYTHON, f"{CARRIED}/{packing.PROGRAM}", SOCKET]
"""Command of the resident."""

_RESIDENT: Final = (str(Path(__file__).parents[1]), "resident.serving")


class Carrier:
    """Fills the volume once per manager process, when the first image is available."""

    def __init__(self, engine: Engine, owner: Owner) -> None:
        self._engine = engine
        self._owner = owner
        # The mesh is part of the digest, so that another mesh's node of this name removes only its own volume.
        digest = hashlib.sha256(f"{owner.mesh} {sys.version}".encode() + resident()).hexdigest()
        self._family = f"treadle-carried-{owner.node.lower()}-"
        self.volume = self._family + digest[:12]
        self._earlier: set[str] = set()
        self._filling: asyncio.Task[None] | None = None

    async def ready(self, image: Image) -> str:
        """Return the volume's name when it is filled. `image`: any image that the engine has.

        Cancelling a waiter does not cancel the filling: the engine would continue it, and its container would remain.

        Raises:
            RuntimeUnavailable: it could not be filled.
        """
        if self._filling is None or _failed(self._filling):
            self._filling = asyncio.create_task(self._fill(image), name="fill the volume of residents")
        await asyncio.shield(self._filling)
        return self.volume

    def forget(self) -> None:
        """Fill the volume again for the next container, because it was found empty: somebody removed it."""
        if self._filling is not None and self._filling.done():
            self._filling = None

    def notice(self, mounts: list[dict[str, Any]]) -> None:
        """Record the mounts of an earlier manager's container: they may include a volume of another version."""
        self._earlier |= {mount["Name"] for mount in mounts if mount.get("Name", "").startswith(self._family)}

    async def remove(self) -> None:
        """Remove the volume and those of earlier managers, unless a container still mounts them."""
        if self._filling is not None:
            await asyncio.wait({self._filling})
            self._filling = None
        for volume in {self.volume, *self._earlier}:
            await self._engine.remove_volume(volume)

    async def _fill(self, image: Image) -> None:
        """Fill the volume through a container that is never started: the engine unpacks archives into its volumes."""
        archive = await _packed()
        name = f"treadle-{self._owner.node}-carrier-{secrets.token_hex(4)}"
        config: dict[str, Any] = {
            "Image": image.id,
            "Entrypoint": COMMAND,
            "Labels": self._owner.labels,
            "HostConfig": {
                "NetworkMode": "none",
                "Mounts": [
                    {
                        "Type": "volume",
                        "Source": self.volume,
                        "Target": CARRIED,
                        "VolumeOptions": {"Labels": self._owner.labels},
                    }
                ],
            },
        }
        try:
            container = await self._engine.create(name, config)
            try:
                await self._engine.put(container, CARRIED, archive)
            finally:
                await self._engine.remove(container)
        except EngineRefusal as refusal:
            raise RuntimeUnavailable(f"the resident cannot be carried into containers: {refusal.message}") from refusal


def _failed(filling: asyncio.Task[None]) -> bool:
    return filling.done() and (filling.cancelled() or filling.exception() is not None)


async def _packed() -> bytes:
    """Return the archive with this interpreter and the resident.

    Raises:
        RuntimeUnavailable: this interpreter cannot be packed.
    """
    # By its real path: a virtual environment's interpreter is a link, and the packer does not need that environment.
    command = [os.path.realpath(sys.executable), "-I", "-S", packing.__file__]  # noqa: ASYNC240 - a readlink
    packer = await asyncio.create_subprocess_exec(
        *command,
        *_RESIDENT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_PACK_S):
            archive, complaint = await packer.communicate()
    except TimeoutError as error:
        raise RuntimeUnavailable(f"this interpreter could not be packed within {_PACK_S:g} s") from error
    finally:
        if packer.returncode is None:
            packer.kill()
            await packer.wait()
    if packer.returncode != 0:
        raise RuntimeUnavailable(f"this interpreter cannot be packed: {complaint[-2000:].decode(errors='replace')}")
    return archive
