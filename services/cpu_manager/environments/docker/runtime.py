"""The `docker` runtime of a node: environments in containers of one engine (docs/docker.md)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Callable
from typing import Final, Self

from services.cpu_manager.environments.channel import OUTPUT_BYTES, Broken, Resident
from services.cpu_manager.environments.docker.claim import ALONE, CLAIM_S, Claim, Owner
from services.cpu_manager.environments.docker.container import TRAJECTORY, spec_from
from services.cpu_manager.environments.docker.engine import Engine, EngineFacts, EngineRefusal
from services.cpu_manager.environments.docker.environment import DockerEnvironment
from services.cpu_manager.environments.docker.image_budget import ImageBudget, Ledger
from services.cpu_manager.environments.docker.images import PULL_S, PULLS_AT_ONCE, Image, Images
from services.cpu_manager.environments.docker.making import Made, Maker
from services.cpu_manager.environments.docker.removal import Removal
from services.cpu_manager.environments.docker.through_engine import ThroughEngine
from services.cpu_manager.environments.holds import Gone
from services.cpu_manager.environments.protocol import (
    BadEnvironment,
    Environment,
    Postponed,
    RuntimeUnavailable,
)
from shared.messages.environments import EnvironmentSpec
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)

_TAKE_UP_S: Final = 30.0
_TAKEN_UP_AT_ONCE: Final = 8
SOON_S: Final = 5.0
"""A longer pull continues in the background: no action holds cores or one of the node's starts for it."""
PULL_LOOK_S: Final = 10.0
"""Seconds until an action that waits for a pull is granted again. The node's report of the image grants it sooner."""
LOOK_S: Final = 300.0
"""Seconds between reads of the engine's list: others pull and remove images as well."""


class DockerRuntime:
    """A `Runtime`. It holds the claim of its node in its mesh, so containers with both labels are its own (`claim`)."""

    name = "docker"

    def __init__(
        self,
        engine: Engine,
        facts: EngineFacts,
        owner: Owner,
        claim: Claim,
        *,
        output_bytes: int = OUTPUT_BYTES,
        past_engine: bool = True,
        emptied: Callable[[], None] = lambda: None,
        keeping: ImageBudget,
        pulls: int = PULLS_AT_ONCE,
    ) -> None:
        """See `open`."""
        self.facts = facts
        self._engine = engine
        self._owner = owner
        self._output_bytes = output_bytes
        self._image_budget = keeping
        self._images = Images(engine, keeping, pulls_at_once=pulls)
        self._looking = asyncio.create_task(self._look(), name="look for images")
        self._trimming: asyncio.Task[None] | None = None
        self._removal = Removal(engine)
        self._maker = Maker(engine, owner, self._removal, past_engine=past_engine)
        self._environments: set[DockerEnvironment] = set()
        self._claim = claim
        self._emptied = emptied
        self._closed = False
        self._taking_up = asyncio.Semaphore(_TAKEN_UP_AT_ONCE)

    @classmethod
    async def open(
        cls,
        node: str,
        *,
        mesh: str = ALONE,
        url: str = "",
        output_bytes: int = OUTPUT_BYTES,
        past_engine: bool = True,
        claim_s: Seconds = CLAIM_S,
        emptied: Callable[[], None] = lambda: None,
        ledger: Callable[[EngineFacts], Ledger] | None = None,
        budget_bytes: Callable[[EngineFacts], int] = lambda _: 0,
        pulls: int = PULLS_AT_ONCE,
    ) -> Self:
        """Connect to an engine (empty: `DOCKER_HOST`, else the usual socket) and claim the node's containers there.

        Args:
            node: owner of the containers; existing ones are `survivors`.
            mesh: identity of the node's mesh.
            claim_s: longest wait for a predecessor to release the claim.
            emptied: called at the end of `close` if no container is left.
            ledger: stores which images were pulled here; None: only in memory.
            budget_bytes: disk for the images that were pulled here; 0: no limit.
            pulls: most pulls at the same time.
            output_bytes: limit for a file or an archive in either direction.
            past_engine: control containers without the engine if they are on this host.
        Raises:
            RuntimeUnavailable: no engine answers, or another manager owns the node's containers.
        """
        engine, owner = Engine(url), Owner(node, mesh)
        try:
            facts = await engine.facts()
            claim = await Claim.take(owner, claim_s)
            keeping = ImageBudget(engine, ledger and ledger(facts), budget_bytes=budget_bytes(facts))
            try:
                await keeping.open()
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
            past_engine=past_engine,
            emptied=emptied,
            keeping=keeping,
            pulls=pulls,
        )

    @property
    def engine_url(self) -> str:
        return self._engine.url

    async def create(self, trajectory: str, spec: EnvironmentSpec, cores: frozenset[int]) -> DockerEnvironment:
        """See `Runtime.create`."""
        self._image_budget.hold(spec.image)
        try:
            return await self._created(trajectory, spec, cores)
        finally:
            self._let_go(spec.image)

    async def _created(self, trajectory: str, spec: EnvironmentSpec, cores: frozenset[int]) -> DockerEnvironment:
        try:
            image = await self._image_soon(spec.image)
            deadline = asyncio.get_running_loop().time() + spec.setup_timeout_s
            async with asyncio.timeout_at(deadline):
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
        """See `Runtime.survivors`."""
        try:
            containers = await self._engine.labelled(*self._owner.filters)
        except (EngineRefusal, RuntimeUnavailable) as error:
            _log.error("survivors_unknown", problem=str(error))
            return []
        found = await asyncio.gather(*(self._adopted(container) for container in containers))
        return [environment for environment in found if environment is not None]

    async def prepare(self, image: str) -> None:
        """See `Runtime.prepare`. Waits at most `PULL_S` for a registry that limits pulls."""
        try:
            async with asyncio.timeout(PULL_S):
                while True:
                    try:
                        await self._maker.carrier.ready(await self._image(image))
                    except Postponed as postponed:
                        await asyncio.sleep(postponed.retry_in_s)
                    else:
                        return
        except (BadEnvironment, RuntimeUnavailable, TimeoutError) as error:
            _log.warning("image_not_prepared", image=image, problem=str(error) or repr(error))

    def images(self) -> frozenset[str]:
        """See `Runtime.images`. As of the last read of the engine's list, at most `LOOK_S` old."""
        return self._image_budget.reported()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._image_budget.look()
            except (EngineRefusal, RuntimeUnavailable) as error:
                _log.warning("images_not_listed", problem=str(error))

    def _let_go(self, image: str) -> None:
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
        beside = [task for task in (self._looking, self._trimming) if task is not None]
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await self._images.close()
        await asyncio.gather(*(environment.close() for environment in list(self._environments)))
        removed = await self._removal.close()
        with contextlib.suppress(RuntimeUnavailable):
            await self._maker.carrier.remove()
        await self._engine.close()
        if removed:
            self._emptied()
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
            reason = f"image {name!r} is being pulled, with {self._images.under_way} under way on this node"
            raise Postponed(reason, PULL_LOOK_S) from error

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
            cause_of_end=self._cause_of_end,
            dispose=self._dispose,
        )
        self._environments.add(environment)
        self._image_budget.hold(spec.image)
        return environment

    def _dispose(self, environment: DockerEnvironment) -> None:
        self._environments.discard(environment)
        self._let_go(environment.spec.image)
        self._removal.start(environment.container, after=environment.hold.close())

    async def _cause_of_end(self, container: str) -> str:
        """Return why a container ended, for people; empty if it runs or the reason is unknown."""
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

    async def _adopted(self, container: str) -> DockerEnvironment | None:
        """Return an earlier manager's container as an environment; None if that fails, and remove the container."""
        try:
            async with self._taking_up, asyncio.timeout(_TAKE_UP_S):
                return await self._adopt(container)
        except (ValueError, OSError, Broken, Gone, EngineRefusal, BadEnvironment, RuntimeUnavailable) as error:
            _log.warning("survivor_removed", container=container[:12], problem=str(error) or repr(error))
            self._removal.start(container)
            return None

    async def _adopt(self, container: str) -> DockerEnvironment:
        found = await self._engine.inspect(container)
        if found is None:
            raise Gone("it was removed meanwhile")
        self._maker.carrier.notice(found["Mounts"])
        labels = found["Config"]["Labels"]
        spec = spec_from(labels)
        hold = await self._maker.hold(container)
        try:
            if isinstance(hold, ThroughEngine):
                await hold.resume(frozenset())  # the relay can be started only while the container is not frozen
            connection = await hold.connect()
        except BaseException:
            await hold.close()
            raise
        age_s = _age_s(found["State"]["StartedAt"])
        environment = self._environment(labels[TRAJECTORY], spec, Made(container, hold, connection), age_s)
        try:
            await environment.adopt()
        except BaseException:
            await environment.close()
            raise
        return environment


def _age_s(started: str) -> Seconds:
    """Return the seconds since the engine started a container, by this host's clock."""
    return max((dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(started)).total_seconds(), 0.0)
