"""From a specification to a running container with its resident listening, or to nothing at all."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

import msgspec

from services.cpu_manager.environments.docker.carrying import COMMAND, PYTHON, Carrier
from services.cpu_manager.environments.docker.container import CARRIED, Plan, config_of, name_of
from services.cpu_manager.environments.docker.direct import Direct
from services.cpu_manager.environments.docker.engine import Engine, EngineRefusal
from services.cpu_manager.environments.docker.images import Image
from services.cpu_manager.environments.docker.removal import Removal
from services.cpu_manager.environments.docker.through_engine import ThroughEngine
from services.cpu_manager.environments.holds import Gone, Hold
from services.cpu_manager.environments.protocol import BadEnvironment, RuntimeUnavailable
from shared.messages.environments import EnvironmentSpec

AT_ONCE: Final = 4
"""Containers that are being started. 24 at once each take the engine 5 s, four at once 0.6 s."""
_CONNECT_S: Final = 20.0
_LOOK_S: Final = 0.005

_THEIRS: Final = (
    "unable to find user",
    "unable to find group",
    "not a directory",
    "exec format error",
    "working directory",
)
"""Words with which the engine refuses to start what an image or a specification asks for."""


class Made(msgspec.Struct, frozen=True):
    """A container that runs, thawed."""

    container: str
    hold: Hold
    connection: socket.socket


class Maker:
    """Starts containers, a few at a time."""

    def __init__(self, engine: Engine, node: str, removal: Removal, *, past_engine: bool) -> None:
        """`past_engine`: hold containers directly where that can be done."""
        self._engine = engine
        self._node = node
        self._removal = removal
        self._past_engine = past_engine
        self._room = asyncio.Semaphore(AT_ONCE)
        self._sized = True
        self.carrier = Carrier(engine, node)

    @property
    def sized(self) -> bool:
        """Writes of a container are bounded as a whole, as far as was seen yet; else each file is."""
        return self._sized

    async def make(self, trajectory: str, spec: EnvironmentSpec, image: Image, cores: frozenset[int]) -> Made:
        """Create and start a container on these cores, and connect to its resident.

        Cancelled or failed it leaves nothing behind, though its removal may go on for a moment.

        Raises:
            BadEnvironment: what the specification or the image asks for cannot be.
            RuntimeUnavailable: the engine failed.
        """
        plan = Plan(
            node=self._node,
            trajectory=trajectory,
            spec=spec,
            image=image,
            cores=cores,
            command=COMMAND,
            volume=await self.carrier.ready(image),
        )
        name = name_of(self._node, trajectory)
        async with self._room:
            # Not cancelled with us: the engine would go on creating it, and it would be there after its removal.
            creating = asyncio.create_task(self._create(name, plan), name=f"create {name}")
            try:
                container = await asyncio.shield(creating)
                await self._start(container)
                return await self._connected(container, await self.hold(container))
            except BaseException:
                self._removal.start(name, after=creating)
                raise

    async def hold(self, container: str) -> Hold:
        """Hold a running container. Raises `RuntimeUnavailable`, `BadEnvironment` when it does not run."""
        found = await self._engine.inspect(container)
        state = found["State"] if found else {"Running": False}
        if not state["Running"]:
            raise BadEnvironment(f"its container ended at once: {await self._engine.said(container) or state}")
        if self._past_engine and (direct := Direct.of(container, state["Pid"])) is not None:
            if state["Paused"]:
                await self._engine.post(f"containers/{container}/unpause", "thaw a container")
            return direct
        return ThroughEngine(self._engine, container, PYTHON, paused=state["Paused"])

    async def _create(self, name: str, plan: Plan) -> str:
        """Its id. A container that has the name is what a removal could not remove: it goes first."""
        for _ in range(3):
            try:
                return await self._engine.create(name, config_of(plan, sized=self._sized))
            except EngineRefusal as refusal:
                if self._sized and "storage" in refusal.message.lower():
                    self._sized = False
                elif refusal.status == 409:
                    await self._engine.remove(name)
                else:
                    raise _whose(refusal) from refusal
        raise RuntimeUnavailable(f"its container cannot be made: the name {name} is taken")

    async def _start(self, container: str) -> None:
        try:
            await self._engine.start(container)
        except EngineRefusal as refusal:
            if CARRIED in refusal.message:
                self.carrier.forget()
            raise _whose(refusal) from refusal

    async def _connected(self, container: str, hold: Hold) -> Made:
        """To its resident, as soon as it listens."""
        deadline = asyncio.get_running_loop().time() + _CONNECT_S
        try:
            while True:
                try:
                    return Made(container, hold, await hold.connect())
                except (OSError, Gone) as error:
                    problem = error
                if not hold.alive or isinstance(problem, Gone):
                    raise BadEnvironment(f"its container ended at once: {await self._engine.said(container)}")
                if asyncio.get_running_loop().time() > deadline:
                    raise RuntimeUnavailable(f"the resident did not listen within {_CONNECT_S:g} s: {problem}")
                await asyncio.sleep(_LOOK_S)
        except BaseException:
            await hold.close()
            raise


def _whose(refusal: EngineRefusal) -> BadEnvironment | RuntimeUnavailable:
    """The engine would not create or start a container: for what was asked of it, or for a reason of ours?"""
    theirs = any(words in refusal.message.lower() for words in _THEIRS)
    kind = BadEnvironment if theirs else RuntimeUnavailable
    return kind(f"its container cannot be made: {refusal.message}")
