"""The `docker` runtime of a node: environments in containers of one engine (docs/docker.md)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final, Self

from services.cpu_manager.environments.agent_environment import AgentEnvironment
from services.cpu_manager.environments.channel import OUTPUT_BYTES, AgentChannel, Broken
from services.cpu_manager.environments.docker.claim import CLAIM_S, NO_MESH, Claim, Owner
from services.cpu_manager.environments.docker.container import TRAJECTORY, spec_from
from services.cpu_manager.environments.docker.container_models import ContainerModels
from services.cpu_manager.environments.docker.container_state import age_s, cause_of_end
from services.cpu_manager.environments.docker.creation import ContainerCreator, ContainerHandle, CreatedContainer
from services.cpu_manager.environments.docker.engine import ContainerEngine, EngineFacts, EngineRefusal
from services.cpu_manager.environments.docker.engine_handle import EngineHandle
from services.cpu_manager.environments.docker.image_budget import ImageBudget, ImageLedger
from services.cpu_manager.environments.docker.images import PULL_S, PULLS_AT_ONCE, Image, Images
from services.cpu_manager.environments.docker.removal import Removal
from services.cpu_manager.environments.handles import Gone
from services.cpu_manager.environments.protocol import (
    BadEnvironment,
    Environment,
    Postponed,
    RuntimeUnavailable,
)
from services.cpu_manager.forwarder.models import Models, NoModels
from shared.messages.environments import EnvironmentSpec
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)

_ADOPTION_S: Final = 30.0
_ADOPTIONS_AT_ONCE: Final = 8
SOON_S: Final = 5.0
"""A longer pull continues in the background: no action holds cores or one of the node's starts for it."""
PULL_LOOK_S: Final = 10.0
"""Seconds until an action that waits for a pull is granted again. The node's report of the image grants it sooner."""
REFRESH_S: Final = 300.0
"""Seconds between reads of the engine's list: others pull and remove images as well."""


ContainerEnvironment = AgentEnvironment[ContainerHandle]


class DockerRuntime:
    """A `Runtime`. It holds the claim of its node in its mesh, so containers with both labels are its own (`claim`)."""

    name = "docker"

    def __init__(
        self,
        engine: ContainerEngine,
        facts: EngineFacts,
        owner: Owner,
        claim: Claim,
        *,
        output_bytes: int = OUTPUT_BYTES,
        direct: bool = True,
        on_empty: Callable[[], None] = lambda: None,
        image_budget: ImageBudget,
        pulls: int = PULLS_AT_ONCE,
        models: Models | None = None,
    ) -> None:
        """See `open`."""
        self.facts = facts
        self._models = ContainerModels(models or NoModels())
        self._engine = engine
        self._owner = owner
        self._output_bytes = output_bytes
        self._image_budget = image_budget
        self._images = Images(engine, image_budget, pulls_at_once=pulls)
        self._refreshing = asyncio.create_task(self._refresh(), name="look for images")
        self._trimming: asyncio.Task[None] | None = None
        self._removal = Removal(engine)
        self._creator = ContainerCreator(engine, owner, self._removal, direct=direct)
        self._environments: set[ContainerEnvironment] = set()
        self._claim = claim
        self._on_empty = on_empty
        self._closed = False
        self._adoptions = asyncio.Semaphore(_ADOPTIONS_AT_ONCE)

    @classmethod
    async def open(
        cls,
        node: str,
        *,
        mesh: str = NO_MESH,
        url: str = "",
        output_bytes: int = OUTPUT_BYTES,
        direct: bool = True,
        claim_s: Seconds = CLAIM_S,
        on_empty: Callable[[], None] = lambda: None,
        ledger: Callable[[EngineFacts], ImageLedger] | None = None,
        budget_bytes: Callable[[EngineFacts], int] = lambda _: 0,
        pulls: int = PULLS_AT_ONCE,
        models: Models | None = None,
    ) -> Self:
        """Connect to an engine (empty: `DOCKER_HOST`, else the usual socket) and claim the node's containers there.

        Args:
            node: owner of the containers; existing ones are `survivors`.
            mesh: identity of the node's mesh.
            claim_s: longest wait for a predecessor to release the claim.
            on_empty: called at the end of `close` if no container is left.
            ledger: stores which images were pulled here; None: only in memory.
            budget_bytes: disk for the images that were pulled here; 0: no limit.
            pulls: most pulls at the same time.
            models: access to the models of trajectories; None: environments that ask for it are refused.
            output_bytes: limit for a file or an archive in either direction.
            direct: control containers without the engine if they are on this host.
        Raises:
            RuntimeUnavailable: no engine answers, or another manager owns the node's containers.
        """
        engine, owner = ContainerEngine(url), Owner(node, mesh)
        try:
            facts = await engine.facts()
            claim = await Claim.take(owner, claim_s)
            image_budget = ImageBudget(engine, ledger and ledger(facts), budget_bytes=budget_bytes(facts))
            try:
                await image_budget.open()
            except BaseException:
                claim.close()
                raise
        except EngineRefusal as refusal:
            await engine.close()
            raise RuntimeUnavailable(f"the engine at {engine.url} refuses: {refusal.message}") from refusal
        except BaseException:
            await engine.close()
            raise
        return cls(
            engine,
            facts,
            owner,
            claim,
            output_bytes=output_bytes,
            direct=direct,
            on_empty=on_empty,
            image_budget=image_budget,
            pulls=pulls,
            models=models,
        )

    @property
    def engine_url(self) -> str:
        return self._engine.url

    async def create(self, trajectory: str, spec: EnvironmentSpec, cores: frozenset[int]) -> ContainerEnvironment:
        """See `Runtime.create`."""
        self._image_budget.hold(spec.image)
        try:
            return await self._create(trajectory, spec, cores)
        finally:
            self._release_image(spec.image)

    async def _create(self, trajectory: str, spec: EnvironmentSpec, cores: frozenset[int]) -> ContainerEnvironment:
        await self._models.ready(spec)
        try:
            image = await self._image_soon(spec.image)
            deadline = asyncio.get_running_loop().time() + spec.setup_timeout_s
            async with asyncio.timeout_at(deadline):
                created = await self._creator.create(trajectory, spec, image, cores)
                environment = self._environment(trajectory, spec, created)
        except TimeoutError as error:
            raise RuntimeUnavailable(f"no container within {spec.setup_timeout_s:g} s") from error
        except EngineRefusal as refusal:
            raise RuntimeUnavailable(f"the engine refuses: {refusal.message}") from refusal
        try:
            async with asyncio.timeout_at(deadline):
                await self._models.serve(environment)
                await environment.set_up()
        except BaseException as error:
            await environment.close()
            if isinstance(error, TimeoutError):
                raise BadEnvironment(f"its set-up took longer than {spec.setup_timeout_s:g} s") from error
            if isinstance(error, Broken | Gone):
                raise RuntimeUnavailable(f"its container ended during set-up: {error}") from error
            raise
        return environment

    async def survivors(self) -> list[Environment]:
        """See `Runtime.survivors`."""
        try:
            containers = await self._engine.labelled(*self._owner.filters)
        except (EngineRefusal, RuntimeUnavailable) as error:
            _log.error("survivors_not_listed", problem=str(error))
            return []
        found = await asyncio.gather(*(self._try_adopt(container) for container in containers))
        return [environment for environment in found if environment is not None]

    async def prepare(self, image: str) -> None:
        """See `Runtime.prepare`. Waits at most `PULL_S` for a registry that limits pulls."""
        try:
            async with asyncio.timeout(PULL_S):
                while True:
                    try:
                        await self._creator.agent_volume.ready(await self._image(image))
                    except Postponed as postponed:
                        await asyncio.sleep(postponed.retry_in_s)
                    else:
                        return
        except (BadEnvironment, RuntimeUnavailable, TimeoutError) as error:
            _log.warning("image_not_prepared", image=image, problem=str(error) or repr(error))

    def images(self) -> frozenset[str]:
        """See `Runtime.images`. As of the last read of the engine's list, at most `REFRESH_S` old."""
        return self._image_budget.reported()

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self._image_budget.refresh()
            except (EngineRefusal, RuntimeUnavailable) as error:
                _log.warning("images_not_listed", problem=str(error))

    def _release_image(self, image: str) -> None:
        self._image_budget.release(image)
        if not self._closed and (self._trimming is None or self._trimming.done()):
            self._trimming = asyncio.create_task(self._image_budget.trim(), name="trim images")

    async def close(self) -> None:
        """End every environment. Only containers that the engine cannot remove are left with the node's labels.

        Safe to call again.
        """
        if self._closed:
            return
        self._closed = True
        beside = [task for task in (self._refreshing, self._trimming) if task is not None]
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await self._images.close()
        await asyncio.gather(*(environment.close() for environment in list(self._environments)))
        removed = await self._removal.close()
        with contextlib.suppress(RuntimeUnavailable):
            await self._creator.agent_volume.remove()
        await self._engine.close()
        if removed:
            self._on_empty()
        self._claim.close()

    async def _image(self, name: str) -> Image:
        image = await self._images.get(name)
        if image.platform != self.facts.platform:
            raise BadEnvironment(f"image {name!r} is made for {image.platform}, this node is {self.facts.platform}")
        return image

    async def _image_soon(self, name: str) -> Image:
        """Return the image as `_image` does. If it takes longer, raise `Postponed`; the pull continues."""
        try:
            async with asyncio.timeout(SOON_S):
                return await self._image(name)
        except TimeoutError as error:
            reason = f"image {name!r} is being pulled, with {self._images.running} under way on this node"
            raise Postponed(reason, PULL_LOOK_S) from error

    def _environment(
        self, trajectory: str, spec: EnvironmentSpec, created: CreatedContainer, age_s: Seconds = 0.0
    ) -> ContainerEnvironment:
        environment = AgentEnvironment(
            trajectory,
            spec,
            created.handle,
            AgentChannel(created.connection, self._output_bytes),
            age_s=age_s,
            dispose=self._dispose,
            cause_of_end=partial(cause_of_end, self._engine, created.handle.container),
        )
        self._environments.add(environment)
        self._image_budget.hold(spec.image)
        return environment

    def _dispose(self, environment: ContainerEnvironment) -> None:
        self._environments.discard(environment)
        self._models.forget(environment)
        self._release_image(environment.spec.image)
        self._removal.start(environment.handle.container, after=environment.handle.close())

    async def _try_adopt(self, container: str) -> ContainerEnvironment | None:
        """Return an earlier manager's container as an environment; None if that fails, and remove the container."""
        try:
            async with self._adoptions, asyncio.timeout(_ADOPTION_S):
                return await self._adopt(container)
        except (ValueError, OSError, Broken, Gone, EngineRefusal, BadEnvironment, RuntimeUnavailable) as error:
            _log.warning("survivor_removed", container=container[:12], problem=str(error) or repr(error))
            self._removal.start(container)
            return None

    async def _adopt(self, container: str) -> ContainerEnvironment:
        found = await self._engine.inspect(container)
        if found is None:
            raise Gone("it was removed meanwhile")
        self._creator.agent_volume.notice(found["Mounts"])
        labels = found["Config"]["Labels"]
        spec = spec_from(labels)
        handle = await self._creator.handle(container)
        try:
            if isinstance(handle, EngineHandle):
                await handle.resume(frozenset())  # the relay can be started only while the container is not frozen
            connection = await handle.connect()
        except BaseException:
            await handle.close()
            raise
        environment = self._environment(
            labels[TRAJECTORY], spec, CreatedContainer(handle, connection), age_s(found["State"]["StartedAt"])
        )
        try:
            await self._models.serve_survivor(environment)
            await environment.adopt()
        except BaseException:
            await environment.close()
            raise
        return environment
