"""Creation of a container from a specification, until its agent listens. A failed creation leaves nothing."""

from __future__ import annotations

import asyncio
import secrets
import socket
from typing import Any, Final

import msgspec

from services.cpu_manager.environments.docker.agent_volume import COMMAND, PYTHON, AgentVolume
from services.cpu_manager.environments.docker.claim import Owner
from services.cpu_manager.environments.docker.container import (
    AGENT_DIRECTORY,
    CREATION,
    ContainerSpec,
    config_of,
    name_of,
)
from services.cpu_manager.environments.docker.direct_handle import DirectHandle
from services.cpu_manager.environments.docker.engine import ContainerEngine, EngineRefusal
from services.cpu_manager.environments.docker.engine_handle import EngineHandle
from services.cpu_manager.environments.docker.images import Image
from services.cpu_manager.environments.docker.removal import Removal
from services.cpu_manager.environments.handles import Gone
from services.cpu_manager.environments.protocol import BadEnvironment, RuntimeUnavailable
from shared.messages.environments import EnvironmentSpec

AT_ONCE: Final = 4
"""Containers that are started at the same time. 24 at once take the engine 5 s each, four at once 0.6 s."""
_CONNECT_S: Final = 20.0
_LOOK_S: Final = 0.005
_NAME_S: Final = 0.1
_NAMINGS: Final = 6
"""Attempts with a name that is taken by a container whose removal is not complete."""

_TRAINERS: Final = (
    "unable to find user",
    "unable to find group",
    "not a directory",
    "exec format error",
    "working directory",
)
"""Texts in the engine's errors whose cause is the image or the specification."""
_REMOVED: Final = frozenset({"removing", "dead"})
"""States of a container that is being removed."""


ContainerHandle = DirectHandle | EngineHandle


class CreatedContainer(msgspec.Struct, frozen=True):
    """A running container, not frozen."""

    handle: ContainerHandle
    connection: socket.socket


class ContainerCreator:
    """Creates containers, a few at a time."""

    def __init__(self, engine: ContainerEngine, owner: Owner, removal: Removal, *, direct: bool) -> None:
        """`direct`: control containers directly if possible."""
        self._engine = engine
        self._owner = owner
        self._removal = removal
        self._direct = direct
        self._room = asyncio.Semaphore(AT_ONCE)
        self._sized = True
        self.agent_volume = AgentVolume(engine, owner)

    @property
    def sized(self) -> bool:
        """True if, as far as known, a container's writes are limited in total; else each file is limited."""
        return self._sized

    async def create(
        self, trajectory: str, spec: EnvironmentSpec, image: Image, cores: frozenset[int]
    ) -> CreatedContainer:
        """Create and start a container on these cores, and connect to its agent.

        If it is cancelled or fails it leaves nothing behind, though the removal may continue for a moment.

        Raises:
            BadEnvironment: the specification or the image asks for something impossible.
            RuntimeUnavailable: the engine failed.
        """
        container_spec = ContainerSpec(
            owner=self._owner,
            trajectory=trajectory,
            spec=spec,
            image=image,
            cores=cores,
            command=COMMAND,
            volume=await self.agent_volume.ready(image),
            creation=secrets.token_hex(8),
        )
        name = name_of(self._owner, trajectory)
        async with self._room:
            # Not cancelled together with this call: the engine would still create it, after its removal.
            abandoned = asyncio.Event()
            creating = asyncio.create_task(self._create(name, container_spec, abandoned), name=f"create {name}")
            try:
                container = await asyncio.shield(creating)
                await self._start(container)
                return await self._connect(container, await self.handle(container))
            except BaseException:
                abandoned.set()
                # By label, not by name: the trajectory's next container may have the name before this removal ends.
                self._removal.start_labelled(f"{CREATION}={container_spec.creation}", after=creating)
                raise

    async def handle(self, container: str) -> ContainerHandle:
        """Return the handle of a running container. Raise `RuntimeUnavailable`; `BadEnvironment` if it does not run."""
        state = await self._state(container)
        if not state["Running"]:
            raise BadEnvironment(f"its container ended at once: {await self._engine.logs(container) or state}")
        if self._direct and (direct := DirectHandle.of(container, state["Pid"])) is not None:
            if state["Paused"]:
                await self._engine.post(f"containers/{container}/unpause", "thaw a container")
            return direct
        return EngineHandle(self._engine, container, PYTHON, paused=state["Paused"])

    async def _state(self, container: str) -> dict[str, Any]:
        """Return the engine's state of a container. Raise `RuntimeUnavailable` if somebody removed it."""
        found = await self._engine.inspect(container)
        if found is None or found["State"].get("Status") in _REMOVED:
            raise RuntimeUnavailable("its container was removed meanwhile")
        state: dict[str, Any] = found["State"]
        return state

    async def _remove_namesake(self, name: str, abandoned: asyncio.Event) -> None:
        """Remove our own container of this name, unless the creation was given up: it may be the successor then."""
        found = await self._engine.inspect(name)
        if abandoned.is_set():
            raise RuntimeUnavailable("its creation was abandoned")
        if found is None:
            return
        labels = found["Config"]["Labels"] or {}
        if not self._owner.labels.items() <= labels.items():
            raise RuntimeUnavailable(f"its container cannot be created: {name} is a container of another owner")
        await self._engine.remove(found["Id"])

    async def _create(self, name: str, container_spec: ContainerSpec, abandoned: asyncio.Event) -> str:
        """Create the container and return its id. A container left over under the same name is removed first."""
        for attempt in range(_NAMINGS):
            try:
                return await self._engine.create(name, config_of(container_spec, sized=self._sized))
            except EngineRefusal as refusal:
                if self._sized and "storage" in refusal.message.lower():
                    self._sized = False
                elif refusal.status == 409:
                    await self._remove_namesake(name, abandoned)
                    await asyncio.sleep(_NAME_S * attempt)
                else:
                    raise _to_error(refusal) from refusal
        raise RuntimeUnavailable(f"its container cannot be created: the name {name} is taken")

    async def _start(self, container: str) -> None:
        try:
            await self._engine.start(container)
        except EngineRefusal as refusal:
            if AGENT_DIRECTORY in refusal.message:
                self.agent_volume.forget()
            raise _to_error(refusal) from refusal

    async def _connect(self, container: str, handle: ContainerHandle) -> CreatedContainer:
        """Connect to its agent as soon as it listens."""
        deadline = asyncio.get_running_loop().time() + _CONNECT_S
        try:
            while True:
                try:
                    return CreatedContainer(handle, await handle.connect())
                except (OSError, Gone) as error:
                    problem = error
                if not handle.alive or isinstance(problem, Gone):
                    await self._state(container)
                    raise BadEnvironment(f"its container ended at once: {await self._engine.logs(container)}")
                if asyncio.get_running_loop().time() > deadline:
                    raise RuntimeUnavailable(f"the agent did not listen within {_CONNECT_S:g} s: {problem}")
                await asyncio.sleep(_LOOK_S)
        except BaseException:
            await handle.close()
            raise


def _to_error(refusal: EngineRefusal) -> BadEnvironment | RuntimeUnavailable:
    """Convert the engine's error on creation or start: caused by the specification or image, or by us."""
    theirs = any(words in refusal.message.lower() for words in _TRAINERS)
    kind = BadEnvironment if theirs else RuntimeUnavailable
    return kind(f"its container cannot be created: {refusal.message}")
