"""An environment that reaches its model reaches nothing else, and finds no key. On every rung that has environments."""

from __future__ import annotations

import asyncio
import mmap
import os
from pathlib import Path

import pytest

from services.cpu_manager.environments.local.runtime import CellEnvironment, LocalRuntime
from services.cpu_manager.forwarder import served
from services.cpu_manager.sandbox.rungs import Rung
from services.cpu_manager.sandbox.usage import pid_of
from shared.messages.environments import MODEL_PORT
from tests.services.cpu_manager.environments.local.acting import (
    CORE,
    SMALL,
    WITH_MODEL,
    act,
    output_of,
    printed,
)
from tests.services.cpu_manager.environments.models import ModelMesh, connections_of

SEARCH = """
import os, sys
key, found, searched = sys.stdin.readline().strip().encode(), [], 0
os.close(0)
for root in ("/tmp", "/proc", "/etc", "/dev/shm", "/run"):
    for place, _, names in os.walk(root):
        for name in names:
            try:
                if not os.path.isfile(place + "/" + name): continue
                with open(place + "/" + name, "rb") as file:
                    searched += 1
                    if key in file.read(1 << 20): found.append(place + "/" + name)
            except OSError: pass
print(found, searched > 100, [name for name in os.environ if key.decode() in os.environ[name]])
"""


async def test_the_key_is_nowhere_inside(with_model: CellEnvironment, mesh: ModelMesh, trajectory: str) -> None:
    assert mesh.forwarder._keys is not None
    key = mesh.forwarder._keys.of(trajectory)
    await printed(with_model, "openai().read()")
    await act(with_model, "write", path="search.py", content=SEARCH)
    end = await act(with_model, "exec", argv=["python3", "search.py"], stdin=f"{key}\n")
    assert end.output["stdout"] == "[] True []\n", end


async def test_nothing_but_its_own_model_routes_is_reached(with_model: CellEnvironment, mesh: ModelMesh) -> None:
    other = (await mesh.opened())["id"]
    paths = [
        "/workers", "/metrics", "/healthz", "/", "/v1/trajectories", f"/r/{other}/v1/chat/completions",
        f"/v1/../r/{other}/v1/chat/completions", "/v1/chat/completions/../../workers", "/v1/chat%2fcompletions",
        f"http://127.0.0.1/r/{other}/v1/models", "//v1/models",
    ]  # fmt: skip
    program = f"""
import http.client
for path in {paths!r}:
    connection = http.client.HTTPConnection("127.0.0.1", {MODEL_PORT})
    connection.request("POST", path, b"{{}}")
    print(connection.getresponse().status)
connection = http.client.HTTPConnection("127.0.0.1", {MODEL_PORT})
connection.request("GET", "/v1/chat/completions")
print(connection.getresponse().status)
"""
    assert await printed(with_model, program) == "\n".join(["404"] * len(paths) + ["405"])
    assert mesh.engine.received == []


async def test_no_address_but_the_listeners_is_reached(with_model: CellEnvironment, mesh: ModelMesh) -> None:
    port = mesh.router.url.rpartition(":")[2]
    program = f"""
import errno, socket
def tried(family, kind, protocol, address):
    try:
        with socket.socket(family, kind, protocol) as one:
            one.settimeout(2)
            one.connect(address)
        return "reached"
    except OSError as error: return errno.errorcode.get(error.errno, repr(error))
inet, stream = socket.AF_INET, socket.SOCK_STREAM
print(tried(inet, stream, 0, ("127.0.0.1", {MODEL_PORT})), tried(inet, stream, 6, ("127.0.0.1", {MODEL_PORT})))
print(tried(inet, stream, 0, ("127.0.0.1", {port})))
for host in ("10.0.0.1", "192.168.1.1", "169.254.169.254", "8.8.8.8", "172.17.0.1", "255.255.255.255", "224.0.0.1"):
    print(tried(inet, stream, 0, (host, 80)))
print(tried(socket.AF_INET6, stream, 0, ("::1", {MODEL_PORT})))
print(tried(inet, socket.SOCK_DGRAM, 0, ("127.0.0.1", 53)), tried(inet, socket.SOCK_RAW, 1, ("127.0.0.1", 0)))
print(tried(inet, stream, 262, ("127.0.0.1", {MODEL_PORT})), tried(socket.AF_NETLINK, socket.SOCK_RAW, 0, (0, 0)))
print(tried(socket.AF_PACKET, socket.SOCK_RAW, 0, ("lo", 0)))
with socket.create_connection(("127.0.0.1", {MODEL_PORT})) as one:
    try: one.setsockopt(6, 31, b"tls")
    except OSError as error: print(errno.errorcode[error.errno])
"""
    lines = (await printed(with_model, program)).split("\n")
    assert lines[:2] == ["reached reached", "ECONNREFUSED"]
    assert lines[2:9] == ["ENETUNREACH"] * 7
    assert lines[9:12] == ["EAFNOSUPPORT", "EPROTONOSUPPORT EPROTONOSUPPORT", "EPROTONOSUPPORT EAFNOSUPPORT"]
    assert lines[12:] == ["EAFNOSUPPORT", "ENOPROTOOPT"]


async def test_servers_inside_are_reached_from_inside_alone(models: LocalRuntime, mesh: ModelMesh) -> None:
    one, two = [await models.create((await mesh.opened())["id"], WITH_MODEL, CORE) for _ in range(2)]
    serve = f"""
import socket
taken = socket.create_server(("0.0.0.0", 8080))
try: socket.create_server(("127.0.0.1", {MODEL_PORT}), reuse_port=True)
except OSError as error: print("taken", error.errno)
print(socket.create_connection(("127.0.0.1", 8080)).getpeername())
"""
    assert (await printed(one, serve)).split("\n") == [
        "taken 98",
        "('127.0.0.1', 8080)",
    ]
    await output_of(one, "python3 -m http.server 8080 > /dev/null 2>&1 & sleep 1")
    probe = "import socket; socket.create_connection(('127.0.0.1', 8080), 1)"
    assert not (await act(two, "exec", argv=["python3", "-c", probe])).passed
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", 8080)
    await one.close()
    await two.close()


async def test_an_environment_without_it_has_no_inet_sockets(models: LocalRuntime) -> None:
    plain = await models.create("plain", SMALL, CORE)
    program = "import socket\ntry: socket.socket()\nexcept OSError as error: print(error.errno)"
    assert (await act(plain, "exec", argv=["python3", "-c", program])).output["stdout"] == "97\n"
    assert await output_of(plain, "env | grep -c -e OPENAI -e ANTHROPIC || true") == "0"
    assert "lo" not in await output_of(plain, "grep -l 1 /proc/net/fib_trie; true")
    await plain.close()


async def test_sizes_are_bounded(with_model: CellEnvironment, mesh: ModelMesh) -> None:
    program = f"""
import http.client
def status(send):
    connection = http.client.HTTPConnection("127.0.0.1", {MODEL_PORT}, timeout=30)
    try:
        send(connection)
        return connection.getresponse().status
    except OSError as error: return type(error).__name__
def declared(connection):
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("content-length", str({served.MOST_BODY_BYTES + 1}))
    connection.endheaders()
def streamed(connection):
    parts = (b"x" * (1 << 20) for _ in range({served.MOST_BODY_BYTES // (1 << 20) + 2}))
    headers = {{"transfer-encoding": "chunked"}}
    connection.request("POST", "/v1/completions", parts, headers, encode_chunked=True)
def head(connection):
    connection.request("GET", "/v1/models", headers={{"x": "y" * {served.MOST_HEAD_BYTES * 2}}})
def many(connection):
    headers = {{f"x{{n}}": "y" for n in range({served.MOST_HEADERS + 10})}}
    connection.request("GET", "/v1/models", headers=headers)
print(status(declared), status(head), status(many))
print(status(streamed))
"""
    lines = (await printed(with_model, program)).split("\n")
    assert lines[0] == "413 400 400"
    assert lines[1] in ("413", "BrokenPipeError", "ConnectionResetError")
    assert mesh.engine.received == []
    assert await printed(with_model, "print(openai().status)") == "200"


async def test_connections_are_bounded_and_another_trajectory_is_served_meanwhile(
    with_model: CellEnvironment, models: LocalRuntime, mesh: ModelMesh
) -> None:
    hold = f"""
import socket, time
kept = []
for _ in range({served.MOST_CONNECTIONS * 3}):
    one = socket.socket(); one.settimeout(0.05)
    try: one.connect(("127.0.0.1", {MODEL_PORT}))
    except OSError: pass
    kept.append(one)
open("held", "w"); time.sleep(60)
"""
    await act(with_model, "write", path="hold.py", content=hold)
    await output_of(with_model, "python3 hold.py & until [ -e held ]; do sleep 0.05; done")
    assert connections_of(mesh.forwarder) == served.MOST_CONNECTIONS
    other = await models.create((await mesh.opened())["id"], WITH_MODEL, CORE)
    assert await printed(other, "print(openai().status)") == "200"
    await other.close()


async def test_the_agent_gave_its_listener_away(with_model: CellEnvironment) -> None:
    agent = pid_of(with_model.handle.pidfd)
    links = [os.readlink(f"/proc/{agent}/fd/{name}") for name in os.listdir(f"/proc/{agent}/fd")]  # noqa: PTH115, PTH208
    listening = await output_of(with_model, "grep -c ' 0A ' /proc/net/tcp")
    assert listening == "1"
    inode = await output_of(with_model, "awk '$4 == \"0A\" {print $10}' /proc/net/tcp")
    assert f"socket:[{inode}]" not in links


def tcp_bytes() -> int:
    """Buffers of all TCP sockets of this machine."""
    (line,) = [line for line in Path("/proc/net/sockstat").read_text().splitlines() if line.startswith("TCP:")]
    return int(line.split()[line.split().index("mem") + 1]) * mmap.PAGESIZE


FILL = """
import socket, time
listener, kept, sent = socket.create_server(("127.0.0.1", 8080), backlog=128), [], 0
try:
    while len(kept) < 200 and sent < 300 << 20:
        one = socket.create_connection(("127.0.0.1", 8080)); other, _ = listener.accept()
        one.setblocking(False)
        kept += [one, other]
        try:
            while True: sent += one.send(bytes(1 << 20))
        except OSError: pass
except OSError: pass
open("filled", "w")
time.sleep(60)
"""


async def test_buffers_of_its_connections_are_bounded_where_groups_count_them(
    models: LocalRuntime, trajectory: str, rung: Rung
) -> None:
    environment = await models.create(trajectory, WITH_MODEL, CORE)
    before = tcp_bytes()
    await act(environment, "write", path="fill.py", content=FILL)
    await output_of(environment, "python3 fill.py & until [ -e filled ]; do sleep 0.05; done")
    held = tcp_bytes() - before
    if rung.control_groups:
        assert held < WITH_MODEL.memory_mb << 20
    assert environment.alive
    assert await output_of(environment, "echo well") == "well"
    await environment.close()


async def test_requests_are_paced(with_model: CellEnvironment) -> None:
    program = f"""
import http.client, time
began, count = time.monotonic(), 0
while count < {served.BURST} + 150:
    connection = http.client.HTTPConnection("127.0.0.1", {MODEL_PORT})
    try:
        for _ in range(50):
            connection.request("GET", "/none"); connection.getresponse().read(); count += 1
    except OSError: pass
print(count <= {served.BURST} + {served.RATE} * (time.monotonic() - began) + 5)
"""
    assert await printed(with_model, program) == "True"
