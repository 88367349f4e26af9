"""The parts of the container engine's API that are used here. Every call is bounded; failures name their cause.

A call ends in one of three ways: an answer; `EngineRefusal`, an error from the engine with its status and message; or
`RuntimeUnavailable` if no answer came. aiodocker has no time limits and reports an unreachable engine as status 900.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import Awaitable, Mapping
from typing import Any, Final, Self, TypeVar

import aiohttp
import msgspec
from aiodocker import Docker
from aiodocker.exceptions import DockerError
from aiodocker.stream import Stream

from services.cpu_manager.environments.protocol import RuntimeUnavailable

DEFAULT_URL: Final = "unix:///var/run/docker.sock"
ANSWER_S: Final = 30.0
"""Time limit for any call but a pull. If 24 containers start at once, the engine takes 5 s to start one of them
here."""
REMOVE_S: Final = 300.0
"""Time limit for the removal of an image: the layers of 10 GB are many files."""
_UNREACHABLE: Final = 900

Answer = TypeVar("Answer")


class EngineRefusal(Exception):
    """The engine returned an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0 if the error came in the middle of a stream."""
        self.message = message


class EngineFacts(msgspec.Struct, frozen=True):
    """The engine's description of itself."""

    version: str
    platform: str
    """`linux/amd64`, as in images."""
    storage: str
    """Storage driver: `overlay2`."""
    cgroup_version: str
    id: str = ""
    """Identity of the engine; empty if it has none."""
    root: str = ""
    """The folder of its images, on its host."""

    def __str__(self) -> str:
        """For people: `20.10.24 (overlay2, control groups v1)`."""
        return f"{self.version} ({self.storage}, control groups v{self.cgroup_version})"


class ContainerEngine:
    """One container engine. Create and close it on the event loop that uses it."""

    def __init__(self, url: str = "") -> None:
        """Prepare a connection to `url`, else to `DOCKER_HOST`, else to the usual socket. Nothing is sent yet.

        Connections are not limited: streams into containers hold one each while they are open.
        """
        self.url = url or os.environ.get("DOCKER_HOST") or DEFAULT_URL
        scheme, _, path = self.url.partition("://")
        self._connector: aiohttp.BaseConnector = (
            aiohttp.UnixConnector(path, limit=0) if scheme == "unix" else aiohttp.TCPConnector(limit=0)
        )
        # With our connector, aiodocker uses the url only in calls, where a socket path is not valid.
        self.docker = Docker("unix://localhost" if scheme == "unix" else self.url, connector=self._connector)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.docker.close()
        await self._connector.close()

    async def facts(self) -> EngineFacts:
        version = await bounded("report its version", self.docker.version())
        info = await bounded("describe itself", self.docker.system.info())
        platform = f"{version.get('Os', 'linux')}/{version.get('Arch', '')}"
        cgroups = info.get("CgroupVersion", "1")
        name, root = info.get("ID") or "", info.get("DockerRootDir") or ""
        return EngineFacts(version["Version"], platform, info.get("Driver", ""), cgroups, name, root)

    async def image(self, name: str) -> dict[str, Any] | None:
        """Return the engine's data of an image; None if it has no image of this name."""
        try:
            return await bounded(f"look for image {name}", self.docker.images.inspect(name))
        except EngineRefusal as refusal:
            if refusal.status == 404:
                return None
            raise

    async def images(self) -> list[dict[str, Any]]:
        """Return all images that it lists: `RepoTags`, `RepoDigests`, `Size`."""
        found: list[dict[str, Any]] = await self.get("images/json", "list its images", {})
        return found

    async def remove_image(self, name: str) -> None:
        """Remove an image. The engine refuses (409) while any container uses it."""
        await bounded(f"remove image {name}", self.docker._query_json(f"images/{name}", "DELETE"), REMOVE_S)

    async def pull(self, name: str, timeout_s: float) -> None:
        """Pull an image. A stream that breaks off looks like success: check for the image afterwards."""
        await bounded(f"pull {name}", self.docker.images.pull(name), timeout_s)

    async def create(self, name: str, config: Mapping[str, Any]) -> str:
        """Create a container and return its id."""
        return (await bounded(f"create {name}", self.docker.containers.create(config, name=name))).id

    async def start(self, container: str) -> None:
        await bounded("start a container", self.docker.containers.container(container).start())

    async def inspect(self, container: str) -> dict[str, Any] | None:
        """Return the engine's data of a container; None if there is none."""
        try:
            return await bounded("inspect a container", self.docker.containers.container(container).show())
        except EngineRefusal as refusal:
            if refusal.status == 404:
                return None
            raise

    async def logs(self, container: str, most: int = 4096) -> str:
        """Return the last output of the container's first program; empty if the engine has none."""
        logs = self.docker.containers.container(container).log(stdout=True, stderr=True, tail=50)
        with contextlib.suppress(EngineRefusal):
            return "".join(await bounded("read a container's output", logs))[-most:]
        return ""

    async def remove(self, container: str) -> None:
        """Kill and remove a container with its anonymous volumes, by id or name. A missing one counts as removed."""
        try:
            deletion = self.docker.containers.container(container).delete(force=True, v=True)
            await bounded("remove a container", deletion)
        except EngineRefusal as refusal:
            if refusal.status not in {404, 409}:  # 409: it is being removed already
                raise

    async def labelled(self, *labels: str) -> list[str]:
        """Return ids of all containers, running or not, with these `key=value` labels."""
        filters = msgspec.json.encode({"label": list(labels)}).decode()
        found = await bounded("list containers", self.docker.containers.list(all="1", filters=filters))
        return [container.id for container in found]

    async def put(self, container: str, path: str, archive: bytes) -> None:
        """Unpack a tar archive in an existing directory of a container."""
        target = self.docker.containers.container(container)
        # aiodocker leaves this one method without types.
        await bounded("write into a container", target.put_archive(path, io.BytesIO(archive)))  # type: ignore[no-untyped-call]

    async def remove_volume(self, name: str) -> None:
        """Remove a volume, unless it is mounted."""
        with contextlib.suppress(EngineRefusal):
            await bounded("remove a volume", self.docker._query_json(f"volumes/{name}", "DELETE"))

    async def post(self, path: str, what: str, body: Mapping[str, Any] | None = None) -> Any:
        """Make a call that aiodocker has no method for."""
        return await bounded(what, self.docker._query_json(path, "POST", data=body))

    async def get(self, path: str, what: str, params: Mapping[str, Any]) -> Any:
        return await bounded(what, self.docker._query_json(path, "GET", params=params))

    async def exec(self, container: str, argv: list[str]) -> Stream:
        """Start a program in a running container and return its standard streams. The caller closes them."""
        target = self.docker.containers.container(container)
        program = await bounded("prepare a program in a container", target.exec(argv, stdin=True))
        stream = program.start(detach=False)
        await bounded("start a program in a container", stream._init())
        return stream


async def bounded(what: str, call: Awaitable[Answer], timeout_s: float = ANSWER_S) -> Answer:
    """Return the engine's answer.

    Raises:
        EngineRefusal: the engine returned an error.
        RuntimeUnavailable: it did not answer within `timeout_s`, or is unreachable.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await call
    except DockerError as error:
        if error.status >= _UNREACHABLE:
            raise RuntimeUnavailable(f"the container engine is out of reach: {error.message}") from error
        raise EngineRefusal(error.status, str(error.message)) from error
    except TimeoutError as error:
        raise RuntimeUnavailable(f"the container engine did not {what} within {timeout_s:g} s") from error
    except (aiohttp.ClientError, OSError) as error:
        raise RuntimeUnavailable(f"the container engine did not {what}: {error}") from error
