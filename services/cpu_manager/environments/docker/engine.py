"""The container engine's API, as far as we use it: every call bounded, every failure told apart by whose it is.

A call ends in one of three ways: an answer; `EngineRefusal`, the engine's own no, with its status and words; or
`RuntimeUnavailable`, when no answer came. aiodocker bounds nothing by itself and reports an engine out of reach as a
status of 900.
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
"""Within which the engine answers anything but a pull. 24 containers at once make it take 5 s to start one here."""
REMOVE_S: Final = 300.0
"""Of an image: the layers of 10 GB are many files."""
_UNREACHABLE: Final = 900

Answer = TypeVar("Answer")


class EngineRefusal(Exception):
    """The engine said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        """Of HTTP; 0 where the refusal came in the middle of a stream."""
        self.message = message


class EngineFacts(msgspec.Struct, frozen=True):
    """What the engine says of itself."""

    version: str
    platform: str
    """`linux/amd64`, as images say it."""
    storage: str
    """Storage driver: `overlay2`."""
    cgroup_version: str
    id: str = ""
    """Of the engine itself; empty where it has none."""
    root: str = ""
    """The folder of its images, on its host."""

    def __str__(self) -> str:
        """For people: `20.10.24 (overlay2, control groups v1)`."""
        return f"{self.version} ({self.storage}, control groups v{self.cgroup_version})"


class Engine:
    """One container engine. Made and closed on the event loop that uses it."""

    def __init__(self, url: str = "") -> None:
        """Connect to `url`, else to `DOCKER_HOST`, else to the usual socket. Nothing is sent yet.

        Connections are not counted: streams into containers hold one each for as long as they live.
        """
        self.url = url or os.environ.get("DOCKER_HOST") or DEFAULT_URL
        scheme, _, path = self.url.partition("://")
        self._connector: aiohttp.BaseConnector = (
            aiohttp.UnixConnector(path, limit=0) if scheme == "unix" else aiohttp.TCPConnector(limit=0)
        )
        # With a connector of ours aiodocker takes the url for the calls' own, where a socket has no place.
        self.docker = Docker("unix://localhost" if scheme == "unix" else self.url, connector=self._connector)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.docker.close()
        await self._connector.close()

    async def facts(self) -> EngineFacts:
        version = await bounded("say its version", self.docker.version())
        info = await bounded("describe itself", self.docker.system.info())
        platform = f"{version.get('Os', 'linux')}/{version.get('Arch', '')}"
        cgroups = info.get("CgroupVersion", "1")
        name, root = info.get("ID") or "", info.get("DockerRootDir") or ""
        return EngineFacts(version["Version"], platform, info.get("Driver", ""), cgroups, name, root)

    async def image(self, name: str) -> dict[str, Any] | None:
        """What the engine knows of an image it has; None when it has none of this name."""
        try:
            return await bounded(f"look for image {name}", self.docker.images.inspect(name))
        except EngineRefusal as refusal:
            if refusal.status == 404:
                return None
            raise

    async def images(self) -> list[dict[str, Any]]:
        """All images that it lists: `RepoTags`, `RepoDigests`, `Size`."""
        found: list[dict[str, Any]] = await self.get("images/json", "list its images", {})
        return found

    async def remove_image(self, name: str) -> None:
        """Remove an image; refused (409) while any container uses it."""
        await bounded(f"remove image {name}", self.docker._query_json(f"images/{name}", "DELETE"), REMOVE_S)

    async def pull(self, name: str, timeout_s: float) -> None:
        """Fetch an image. A stream that breaks off looks like success: look for the image afterwards."""
        await bounded(f"pull {name}", self.docker.images.pull(name), timeout_s)

    async def create(self, name: str, config: Mapping[str, Any]) -> str:
        """Create a container; returns its id."""
        return (await bounded(f"create {name}", self.docker.containers.create(config, name=name))).id

    async def start(self, container: str) -> None:
        await bounded("start a container", self.docker.containers.container(container).start())

    async def inspect(self, container: str) -> dict[str, Any] | None:
        """None when there is none."""
        try:
            return await bounded("inspect a container", self.docker.containers.container(container).show())
        except EngineRefusal as refusal:
            if refusal.status == 404:
                return None
            raise

    async def said(self, container: str, most: int = 4096) -> str:
        """The last of what the container's first program wrote; nothing where the engine does not tell."""
        logs = self.docker.containers.container(container).log(stdout=True, stderr=True, tail=50)
        with contextlib.suppress(EngineRefusal):
            return "".join(await bounded("read a container's output", logs))[-most:]
        return ""

    async def remove(self, container: str) -> None:
        """Kill and remove a container with its anonymous volumes, by id or name. One that is not there is removed."""
        try:
            deletion = self.docker.containers.container(container).delete(force=True, v=True)
            await bounded("remove a container", deletion)
        except EngineRefusal as refusal:
            if refusal.status not in {404, 409}:  # 409: it is being removed already
                raise

    async def labelled(self, *labels: str) -> list[str]:
        """Ids of all containers, running or not, that carry these `key=value` labels."""
        filters = msgspec.json.encode({"label": list(labels)}).decode()
        found = await bounded("list containers", self.docker.containers.list(all="1", filters=filters))
        return [container.id for container in found]

    async def put(self, container: str, path: str, archive: bytes) -> None:
        """Unpack a tar archive in a container's directory, which is there."""
        target = self.docker.containers.container(container)
        # aiodocker leaves this one method without types.
        await bounded("write into a container", target.put_archive(path, io.BytesIO(archive)))  # type: ignore[no-untyped-call]

    async def remove_volume(self, name: str) -> None:
        """Remove a volume that nobody has mounted; leave one that somebody has."""
        with contextlib.suppress(EngineRefusal):
            await bounded("remove a volume", self.docker._query_json(f"volumes/{name}", "DELETE"))

    async def post(self, path: str, what: str, body: Mapping[str, Any] | None = None) -> Any:
        """A call that aiodocker has no method for."""
        return await bounded(what, self.docker._query_json(path, "POST", data=body))

    async def get(self, path: str, what: str, params: Mapping[str, Any]) -> Any:
        return await bounded(what, self.docker._query_json(path, "GET", params=params))

    async def run_beside(self, container: str, argv: list[str]) -> Stream:
        """Start a program in a running container; returns its standard streams. The caller closes them."""
        target = self.docker.containers.container(container)
        program = await bounded("prepare a program in a container", target.exec(argv, stdin=True))
        stream = program.start(detach=False)
        await bounded("start a program in a container", stream._init())
        return stream


async def bounded(what: str, call: Awaitable[Answer], timeout_s: float = ANSWER_S) -> Answer:
    """The engine's answer.

    Raises:
        EngineRefusal: it said no.
        RuntimeUnavailable: it said nothing, for `timeout_s` or because it is out of reach.
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
