"""The engine proxy in front of a real engine, with the client that the CPU manager uses."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiodocker import Docker
from aiodocker.containers import DockerContainer
from aiodocker.exceptions import DockerError

from services.engine_proxy.app import EngineProxy
from services.engine_proxy.settings import EngineProxySettings
from tests.e2e.containers.engine import private_engine
from treadle.testing.small_image import small_image

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker")]

ENGINE = Path("/var/run/docker.sock")
NODE = f"proxy{os.getpid()}"
AGENT_VOLUME = f"treadle-agent-{NODE}-0123456789ab"
WALLS = {"NetworkMode": "none", "CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges"], "Init": False}
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    with small_image(f"treadletest:{NODE}") as tag:
        yield tag


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[Docker]:
    """A client behind the engine proxy. Its containers are removed."""
    settings = EngineProxySettings(node=NODE, listen=tmp_path / "proxy.sock", engine=ENGINE)
    async with asyncio.timeout(PATIENCE_S), EngineProxy(settings), Docker(f"unix://{settings.listen}") as client:
        yield client
        for container in await client.containers.list(all="1"):
            await container.delete(force=True, v=True)


async def running(client: Docker, image: str, **fields: Any) -> DockerContainer:
    host = {**WALLS, **fields.pop("HostConfig", {})}
    config = {"Image": image, "Labels": {"treadle.node": NODE}, "Cmd": ["sleep", "600"], "HostConfig": host, **fields}
    container = await client.containers.create(config)
    await container.start()
    return container


def docker(*argv: str) -> str:
    """Call the engine itself, past the engine proxy."""
    return subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=30, check=True).stdout


async def output_of(container: DockerContainer, *argv: str) -> str:
    output = b""
    async with (await container.exec(list(argv))).start() as stream:
        while (message := await stream.read_out()) is not None:
            output += message.data
    return output.decode()


async def test_a_whole_container_through_the_proxy(client: Docker, image: str) -> None:
    container = await running(client, image)
    shown = await container.show()
    assert shown["State"]["Running"]
    assert shown["HostConfig"]["NetworkMode"] == "none"
    await container.pause()
    await container.unpause()
    await client._query_json(f"containers/{container.id}/update", "POST", data={"CpusetCpus": "0"})
    assert "Cpus_allowed_list:\t0\n" in await output_of(container, "cat", "/proc/self/status")
    waiting = asyncio.create_task(container.wait())
    await container.kill(signal="SIGKILL")
    assert (await waiting)["StatusCode"] == 137
    await container.delete(force=True, v=True)
    with pytest.raises(DockerError) as missing:
        await container.show()
    assert missing.value.status == 404


async def test_files_go_in_and_out(client: Docker, image: str) -> None:
    container = await running(client, image)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("note")
        entry.size = 1 << 20
        archive.addfile(entry, io.BytesIO(b"n" * entry.size))
    packed.seek(0)
    await container.put_archive("/tmp", packed)  # type: ignore[no-untyped-call]
    assert await output_of(container, "wc", "-c", "/tmp/note") == f"{1 << 20} /tmp/note\n"
    fetched = await container.get_archive("/tmp/note")
    member = fetched.extractfile("note")
    assert member is not None
    assert member.read() == b"n" * (1 << 20)


async def test_an_exec_streams_both_ways(client: Docker, image: str) -> None:
    container = await running(client, image)
    program = await container.exec(["cat"], stdin=True)
    async with program.start() as stream:
        for line in (b"one\n", b"x" * 200_000 + b"\n"):
            await stream.write_in(line)
            echoed = b""
            while len(echoed) < len(line):
                message = await stream.read_out()
                assert message is not None
                echoed += message.data
            assert echoed == line
    assert (await program.inspect())["ContainerID"] == container.id


async def test_a_volume_is_filled_once_and_read_by_others(client: Docker, image: str) -> None:
    mount = {"Type": "volume", "Source": AGENT_VOLUME, "Target": "/run/agent"}
    first = await running(client, image, HostConfig={"Mounts": [mount]})
    await output_of(first, "sh", "-c", "echo carried >/run/agent/file")
    second = await running(client, image, HostConfig={"Mounts": [{**mount, "ReadOnly": True}]})
    assert await output_of(second, "cat", "/run/agent/file") == "carried\n"
    assert "Read-only" in await output_of(second, "touch", "/run/agent/file")
    for container in (first, second):
        await container.delete(force=True)
    await client._query_json(f"volumes/{AGENT_VOLUME}", "DELETE")
    assert AGENT_VOLUME not in docker("volume", "ls")


async def test_an_image_is_asked_for_at_its_registry(client: Docker) -> None:
    """Nothing listens on the port. The engine's error shows that it tried to pull."""
    with pytest.raises(DockerError, match=r"127\.0\.0\.1:9/v2/"):
        await client.images.pull("127.0.0.1:9/treadle/nothing:1")


async def test_somebody_elses_container_cannot_be_reached(client: Docker, image: str) -> None:
    foreign = docker("run", "--detach", "--network=none", image, "sleep", "600").strip()
    try:
        ours = await running(client, image)
        assert [found.id for found in await client.containers.list(all="1")] == [ours.id]
        container = client.containers.container(foreign)
        for attempt in (
            container.show(),
            container.kill(),
            container.exec(["id"]),
            container.delete(force=True),
            container.get_archive("/etc/passwd"),
            client.containers.container(foreign[:12]).pause(),
        ):
            with pytest.raises(DockerError) as rejected:
                await attempt
            assert rejected.value.status == 403
            assert "does not have the label" in str(rejected.value.message)
    finally:
        docker("rm", "--force", foreign)


def post_request(target: str, body: bytes, *headers: bytes) -> bytes:
    """Return a plain POST request."""
    length = b"Content-Length: %d" % len(body)
    lines = (b"POST %b HTTP/1.1" % target.encode(), b"Host: x", b"Content-Type: application/json", length, *headers)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def response_to(socket: Path, sent: bytes) -> bytes:
    """Return the whole answer."""
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(sent)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_a_program_that_cannot_start_leaves_no_way_to_the_engine(
    client: Docker, image: str, tmp_path: Path
) -> None:
    """The engine answers 409 for a paused container and reads on. The next bytes would be a second request."""
    container = await running(client, image)
    program = await container.exec(["cat"], stdin=True)
    await container.pause()
    name = f"smuggled{os.getpid()}"
    start = post_request(f"/v1.41/exec/{program.id}/start", b"{}", b"Connection: Upgrade", b"Upgrade: tcp")
    create = post_request(f"/v1.41/containers/create?name={name}", b'{"Image":"%b","Cmd":["id"]}' % image.encode())

    answer = await response_to(ENGINE, start + create)
    assert answer.count(b"HTTP/1.1") == 2, "the engine takes no second request: this test shows nothing"
    docker("rm", name)

    answer = await response_to(tmp_path / "proxy.sock", start + create)
    assert answer.startswith(b"HTTP/1.1 409 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert name not in docker("ps", "--all", "--format", "{{.Names}}")


@pytest.mark.parametrize(
    "host",
    [
        '{"privileged":true}',
        '{"Privileged":false,"PRIVILEGED":true}',
        '{"Bind\\u017f":["/:/h"]}',
        '{"binds":["/:/h"]}',
    ],
)
async def test_names_that_go_folds_are_accepted_by_the_engine_and_rejected_by_the_proxy(
    client: Docker, image: str, tmp_path: Path, host: str
) -> None:
    body = f'{{"Image":"{image}","Cmd":["id"],"Labels":{{"treadle.node":"{NODE}"}},"HostConfig":{host}}}'.encode()
    create = post_request("/v1.41/containers/create", body, b"Connection: close")
    assert (await response_to(ENGINE, create)).startswith(b"HTTP/1.1 201 ")
    (made,) = await client.containers.list(all="1")
    config = (await made.show())["HostConfig"]
    assert config["Privileged"] or config["Binds"]

    assert (await response_to(tmp_path / "proxy.sock", create)).split(b" ")[1] in {b"400", b"403"}
    assert len(await client.containers.list(all="1")) == 1


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="an engine of its own needs root")
async def test_containers_are_found_again_after_the_engine_was_killed(tmp_path: Path) -> None:
    tag = f"treadletest:{NODE}again"
    with private_engine() as engine, small_image(tag) as image:
        docker("save", image, "--output", str(tmp_path / "image.tar"))
        engine.docker("load", "--input", str(tmp_path / "image.tar"))
        settings = EngineProxySettings(node=NODE, listen=tmp_path / "proxy.sock", engine=engine.socket)
        async with asyncio.timeout(PATIENCE_S), EngineProxy(settings), Docker(f"unix://{settings.listen}") as client:
            container = await running(client, image)
            engine.kill()
            with pytest.raises(DockerError) as away:
                await container.show()
            assert away.value.status == 503
            engine.start()
            assert (await container.show())["State"]["Running"]
            assert "600" in await output_of(container, "cat", "/proc/1/cmdline")
