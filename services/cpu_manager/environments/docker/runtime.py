"""The `docker` runtime of a node: environments in containers of one engine (docs/docker.md)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import Final, Self

from services.cpu_manager.environments.channel import OUTPUT_BYTES, Broken, Resident
from services.cpu_manager.environments.docker.claim import Claim
from services.cpu_manager.environments.docker.container import NODE, TRAJECTORY, spec_from
from services.cpu_manager.environments.docker.engine import Engine, EngineFacts, EngineRefusal
from services.cpu_manager.environments.docker.environment import DockerEnvironment
from services.cpu_manager.environments.docker.images import Image, Images
from services.cpu_manager.environments.docker.making import Made, Maker
from services.cpu_manager.environments.docker.removal import Removal
from services.cpu_manager.environments.docker.through_engine import ThroughEngine
from services.cpu_manager.environments.holds import Gone
from services.cpu_manager.environments.protocol import BadEnvironment, Environment, RuntimeUnavailable
from shared import log
from shared.messages.environments import EnvironmentSpec
from shared.units import Seconds

_log = log.get(__name__)

_TAKE_UP_S: Final = 30.0
_TAKEN_UP_AT_ONCE: Final = 8


class DockerRuntime:
    """A `Runtime`. What carries the node's name is ours, unless another manager of this name lives (`claim`)."""

    name = "docker"

    def __init__(
        self,
        engine: Engine,
        facts: EngineFacts,
        node: str,
        *,
        output_bytes: int = OUTPUT_BYTES,
        past_engine: bool = True,
    ) -> None:
        """See `open`."""
        self.facts = facts
        self._engine = engine
        self._node = node
        self._output_bytes = output_bytes
        self._images = Images(engine)
        self._removal = Removal(engine)
        self._maker = Maker(engine, node, self._removal, past_engine=past_engine)
        self._environments: set[DockerEnvironment] = set()
        self._claim = Claim(node)
        self._closed = False
        self._taking_up = asyncio.Semaphore(_TAKEN_UP_AT_ONCE)

    @classmethod
    async def open(
        cls, node: str, *, url: str = "", output_bytes: int = OUTPUT_BYTES, past_engine: bool = True
    ) -> Self:
        """Connect to an engine (empty: `DOCKER_HOST`, else the usual socket).

        Args:
            node: names the containers, of which those that are there are `survivors`.
            output_bytes: of a file or an archive that is brought in or out.
            past_engine: hold containers past the engine where they are on this host.
        Raises:
            RuntimeUnavailable: none answers.
        """
        engine = Engine(url)
        try:
            facts = await engine.facts()
        except EngineRefusal as refusal:
            await engine.close()
            raise RuntimeUnavailable(f"the engine at {engine.url} refuses: {refusal.message}") from refusal
        except BaseException:
            await engine.close()
            raise
        return cls(engine, facts, node, output_bytes=output_bytes, past_engine=past_engine)

    async def create(self, trajectory: str, spec: EnvironmentSpec, cores: frozenset[int]) -> DockerEnvironment:
        """See `Runtime.create`."""
        deadline = asyncio.get_running_loop().time() + spec.setup_timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                image = await self._image(spec.image)
                made = await self._maker.make(trajectory, spec, image, cores)
                environment = self._environment(trajectory, spec, made)
        except TimeoutError as error:
            raise RuntimeUnavailable(f"no container within {spec.setup_timeout_s:g} s") from error
        except EngineRefusal as refusal:
            raise RuntimeUnavailable(f"the engine refuses: {refusal.message}") from refusal
        try:
            async with asyncio.timeout_at(deadline):
                await environment.begin()
        except BaseException as error:
            await environment.close()
            if isinstance(error, TimeoutError):
                raise BadEnvironment(f"its set-up took longer than {spec.setup_timeout_s:g} s") from error
            if isinstance(error, Broken | Gone):
                raise RuntimeUnavailable(f"its container ended during set-up: {error}") from error
            raise
        return environment

    async def survivors(self) -> list[Environment]:
        """See `Runtime.survivors`. None while another manager of this node's name lives here: they are its own."""
        if not self._claim.held:
            _log.warning("survivors_left_alone", node=self._node, reason="another manager of this name lives here")
            return []
        try:
            containers = await self._engine.labelled(f"{NODE}={self._node}")
        except (EngineRefusal, RuntimeUnavailable) as error:
            _log.error("survivors_unknown", problem=str(error))
            return []
        found = await asyncio.gather(*(self._taken_up(container) for container in containers))
        return [environment for environment in found if environment is not None]

    async def prepare(self, image: str) -> None:
        """See `Runtime.prepare`."""
        try:
            await self._maker.carrier.ready(await self._image(image))
        except (BadEnvironment, RuntimeUnavailable) as error:
            _log.warning("image_not_prepared", image=image, problem=str(error))

    async def close(self) -> None:
        """End every environment; nothing with the node's label is left but what the engine will not remove.

        Safe to call again.
        """
        if self._closed:
            return
        self._closed = True
        await self._images.close()
        await asyncio.gather(*(environment.close() for environment in list(self._environments)))
        await self._removal.close()
        with contextlib.suppress(RuntimeUnavailable):
            await self._maker.carrier.remove()
        await self._engine.close()
        self._claim.close()

    async def _image(self, name: str) -> Image:
        image = await self._images.get(name)
        if image.platform != self.facts.platform:
            raise BadEnvironment(f"image {name!r} is made for {image.platform}, this node is {self.facts.platform}")
        return image

    def _environment(
        self, trajectory: str, spec: EnvironmentSpec, made: Made, age_s: Seconds = 0.0
    ) -> DockerEnvironment:
        environment = DockerEnvironment(
            trajectory,
            spec,
            made.container,
            made.hold,
            Resident(made.connection, self._output_bytes),
            age_s=age_s,
            inquest=self._inquest,
            bury=self._bury,
        )
        self._environments.add(environment)
        return environment

    def _bury(self, environment: DockerEnvironment) -> None:
        self._environments.discard(environment)
        self._removal.start(environment.container, after=environment.hold.close())

    async def _inquest(self, container: str) -> str:
        """Why a container ended, in words; empty when it runs, or nobody knows."""
        try:
            found = await self._engine.inspect(container)
        except (EngineRefusal, RuntimeUnavailable):
            return ""
        if found is None:
            return "its container was removed"
        state = found["State"]
        if state["Running"]:
            return ""
        if state["OOMKilled"]:
            return "its container ended at its memory limit"
        return f"its container was ended (exit code {state['ExitCode']})"

    async def _taken_up(self, container: str) -> DockerEnvironment | None:
        """An earlier life's container as an environment; None when it is beyond that, and being removed."""
        try:
            async with self._taking_up, asyncio.timeout(_TAKE_UP_S):
                return await self._take_up(container)
        except (ValueError, OSError, Broken, Gone, EngineRefusal, BadEnvironment, RuntimeUnavailable) as error:
            _log.warning("survivor_removed", container=container[:12], problem=str(error) or repr(error))
            self._removal.start(container)
            return None

    async def _take_up(self, container: str) -> DockerEnvironment:
        found = await self._engine.inspect(container)
        if found is None:
            raise Gone("it was removed meanwhile")
        self._maker.carrier.notice(found["Mounts"])
        labels = found["Config"]["Labels"]
        spec = spec_from(labels)
        hold = await self._maker.hold(container)
        try:
            if isinstance(hold, ThroughEngine):
                await hold.wake(frozenset())  # a program can be started beside the resident only where it is not frozen
            connection = await hold.connect()
        except BaseException:
            await hold.close()
            raise
        age_s = _age_s(found["State"]["StartedAt"])
        environment = self._environment(labels[TRAJECTORY], spec, Made(container, hold, connection), age_s)
        try:
            await environment.take_up()
        except BaseException:
            await environment.close()
            raise
        return environment


def _age_s(started: str) -> Seconds:
    """Seconds since the engine started a container, by the clock of this host."""
    return max((dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(started)).total_seconds(), 0.0)
