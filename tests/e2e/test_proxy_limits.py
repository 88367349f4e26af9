"""Requests that the proxy rejects: foreign names, long heads, too many bytes; and ids that cannot be guessed."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import redis
import requests

from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import leads, metric, until
from treadle.testing.servers import running_valkey, temporary_home

MOST_BODIES = 2 << 20
PART = 700_000
"""Three of them are more than may be under way."""


@dataclass(frozen=True, slots=True)
class RunningProxy:
    """A proxy without nodes: what it accepts, waits."""

    redis_url: str
    proxy: Service

    @property
    def port(self) -> int:
        return int(self.proxy.url.rpartition(":")[2])

    def answer(self, head: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
        """(status, problem or body) of one request, byte for byte."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as wire:
            wire.sendall(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
            answer = b""
            while part := wire.recv(65536):
                answer += part
        status, _, rest = answer.partition(b"\r\n\r\n")
        return int(status.split()[1]), json.loads(rest)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningProxy]:
    settings = {
        "PROXY_MAX_BODIES_BYTES": str(MOST_BODIES),
        "PROXY_ALLOWED_HOSTS": "mesh.example, other.example",
        "PROXY_RUN_CODE_MARGIN_S": "0.2",
    }
    with (
        temporary_home() as home,
        running_valkey(home) as url,
        running_service("proxy", url, **settings) as proxy,
    ):
        asyncio.run(until(lambda: leads(proxy)))
        yield RunningProxy(url, proxy)


# ---- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["Host: 127.0.0.1:{port}"], 200),
        (["Host: localhost:{port}"], 200),
        (["Host: LOCALHOST"], 200),
        (["Host: [::1]:{port}"], 200),
        (["Host: 127.8.9.1:{port}"], 200),
        (["Host: mesh.example"], 200),
        (["Host: mesh.example:443", "Origin: https://other.example"], 200),
        (["Host: localhost:{port}", "Origin: http://localhost:{port}"], 200),
        (["Host: evil.example:{port}"], 403),
        (["Host: localhost.evil.example:{port}"], 403),
        (["Host: 127.0.0.1.evil.example:{port}"], 403),
        (["Host: 10.1.2.3:{port}"], 403),
        (["Host: mesh.example@evil.example"], 403),
        (["Host: "], 403),
        (["Host: localhost:{port}", "Origin: https://evil.example"], 403),
        (["Host: localhost:{port}", "Origin: http://localhost:1"], 403),
        (["Host: localhost:{port}", "Origin: null"], 403),
        (["Host: localhost:{port}", "Origin: evil://localhost:{port}"], 403),
        (["Host: 127.0.0.1:\u00b2"], 403),
        (["Host: [::1]:x"], 403),
        (["Host: localhost:{port}", "Host: localhost:{port}"], 400),
        (["Host: localhost:{port}", "Host: evil.example"], 400),
        ([], 400),
    ],
)
@pytest.mark.parametrize("path", ["/healthz", "/v1/ping"])
def test_a_request_names_this_service_once(running: RunningProxy, headers: list[str], status: int, path: str) -> None:
    lines = [f"GET {path} HTTP/1.1", *headers, "Connection: close"]
    got, answer = running.answer("\n".join(lines).format(port=running.port))
    assert got == status, answer
    if status == 403:
        assert "PROXY_ALLOWED_HOSTS" in answer["detail"]


def test_a_page_of_another_site_runs_no_code(running: RunningProxy) -> None:
    body = b'{"kind": "noop"}'
    head = f"POST /v1/actions HTTP/1.1\nHost: evil.example\nContent-Length: {len(body)}\nConnection: close"
    with redis.Redis.from_url(running.redis_url) as client:
        before = client.xlen("actions")
        assert running.answer(head, body)[0] == 403
        assert client.xlen("actions") == before


# ---- bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "status"), [(60_000, 200), (66_000, 431), (140_000, 431)])
def test_a_head_of_more_than_64_kibibytes_is_refused(running: RunningProxy, size: int, status: int) -> None:
    head = f"GET /v1/ping HTTP/1.1\nHost: localhost\nX-Filler: {'x' * size}\nConnection: close"
    try:
        assert running.answer(head)[0] == status
    except ConnectionError:
        assert status == 431


def test_trailers_are_dropped(running: RunningProxy) -> None:
    head = "POST /v1/actions HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\nConnection: close"
    body = b'{"kind": "noop"}'
    chunks = b"%x\r\n%s\r\n0\r\nHost: evil.example\r\nTreadle-Tenant: ??\r\n\r\n" % (len(body), body)
    status, answer = running.answer(head, chunks)
    assert status == 202, answer


def begun(running: RunningProxy, exit_stack: ExitStack, path: str) -> socket.socket:
    """A connection that has sent `PART` bytes of a body and may send more."""
    wire = exit_stack.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=30))
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {PART + 10}\r\n\r\n"
    wire.sendall(head.encode() + b"x" * PART)
    return wire


@pytest.mark.parametrize(
    ("path", "status", "retry"),
    [("/v1/actions", 503, True), ("/v1/tasks/t", 503, True), ("/run_code", 504, False)],
)
def test_bodies_under_way_are_bounded_together(running: RunningProxy, path: str, status: int, retry: bool) -> None:
    with ExitStack() as exit_stack:
        for _ in range(2):
            begun(running, exit_stack, "/v1/rewards/bulk")
        asyncio.run(until(lambda: body_bytes(running) >= 2 * PART))
        send = requests.put if path.startswith("/v1/tasks") else requests.post
        refused = send(running.proxy.url + path, data=b"x" * PART, timeout=30)
        assert (refused.status_code, "retry-after" in refused.headers) == (status, retry), refused.text
        assert "bytes of request bodies, of" in refused.json()["detail"]
        small = requests.post(running.proxy.url + "/v1/actions", json={"kind": "noop"}, timeout=30)
        assert small.status_code == 202, "what is small has room"
    asyncio.run(until(lambda: body_bytes(running) == 0))


def test_the_body_of_a_call_that_waits_is_under_way(running: RunningProxy) -> None:
    with ExitStack() as exit_stack:
        for number in range(2):
            body = json.dumps({"kind": "noop", "params": {"echo": f"{number}" * PART}}).encode()
            wire = exit_stack.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=30))
            head = f"POST /v1/actions?wait=100 HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            wire.sendall(head.encode() + body)
        asyncio.run(until(lambda: body_bytes(running) >= 2 * PART))
        refused = requests.post(running.proxy.url + "/v1/actions", data=b"x" * PART, timeout=30)
        assert refused.status_code == 503, refused.text


def body_bytes(running: RunningProxy) -> float:
    return metric(running.proxy, "treadle_proxy_body_bytes")


# ---- images ------------------------------------------------------------------------------------------------------


def test_an_image_of_an_unlisted_registry_is_rejected(running: RunningProxy) -> None:
    url = running.proxy.url
    refused = ["docker.io/evil.example/x", "sha256:" + "0" * 64, "0" * 64]
    for image, status in [
        *((one, 422) for one in refused),
        ("10.0.0.7:5000/x", 422),
        ("localhost:2375/x", 422),
        ("debian:12", 201),
    ]:
        opened = requests.post(url + "/v1/trajectories", json={"environment": {"image": image}}, timeout=30)
        assert opened.status_code == status, opened.text
    assert requests.put(url + "/v1/tasks/t", json={"stages": [{"name": "s", "kind": "noop"}]}, timeout=30).ok
    for image, status in [("169.254.169.254/x", 422), ("ghcr.io/org/x:1", 201)]:
        opened = requests.post(url + "/v1/tasks/t/batches", json={"images": [image]}, timeout=30)
        assert opened.status_code == status, opened.text


# ---- ids ---------------------------------------------------------------------------------------------------------


def accepted(service: Service, request_id: str | None, tenant: str = "ada") -> str:
    body = {"kind": "noop", **({"request_id": request_id} if request_id else {})}
    replies: list[requests.Response] = []

    def taken() -> bool:
        """A replica that has just started may answer 503."""
        url, headers = service.url + "/v1/actions", {"Treadle-Tenant": tenant}
        replies.append(requests.post(url, json=body, headers=headers, timeout=30))
        return replies[-1].status_code != 503

    asyncio.run(until(taken))
    assert replies[-1].status_code in (200, 202), replies[-1].text
    return str(replies[-1].json()["id"])


def test_derived_ids_are_those_of_every_replica(running: RunningProxy) -> None:
    first = accepted(running.proxy, "step-1")
    with running_service("proxy", running.redis_url) as replica:
        assert accepted(replica, "step-1") == first
        assert accepted(replica, "step-1", tenant="eve") != first


def test_ids_without_a_request_id_have_nothing_in_common(running: RunningProxy) -> None:
    ids = [accepted(running.proxy, None) for _ in range(20)]
    assert len(set(ids)) == 20
    shared = [position for position in range(len(ids[0])) if len({each[position] for each in ids}) == 1]
    assert len(shared) <= 2, f"characters {shared} are the same in all of {ids}"


def test_another_store_has_other_ids_and_those_from_before_the_key_are_found_again(running: RunningProxy) -> None:
    """A store that an older version has used: derived ids were a plain hash of tenant, task, batch and request id."""
    legacy = "r44028d0cdf84ba59914169cc"
    with temporary_home() as home, running_valkey(home) as url, redis.Redis.from_url(url) as client:
        with running_service("proxy", url) as proxy:
            asyncio.run(until(lambda: leads(proxy)))
            new = accepted(proxy, "step-1")
            assert new != accepted(running.proxy, "step-1")
            entry = client.hgetall(f"action:{new}")
        client.delete("ids", f"action:{new}")
        client.hset(f"action:{legacy}", mapping=entry)
        with running_service("proxy", url) as proxy:
            assert accepted(proxy, "step-1") == legacy
            assert accepted(proxy, "step-2") != new


def test_an_upgrade_to_http_2_is_answered_as_http_1(running: RunningProxy) -> None:
    """First request of the JDK's client."""
    body = b'{"kind":"noop"}'
    head = (
        "POST /v1/actions HTTP/1.1\nHost: mesh.example\nConnection: Upgrade, HTTP2-Settings, close\n"
        f"HTTP2-Settings: AAEAAEAA\nUpgrade: h2c\nContent-Length: {len(body)}"
    )
    status, action = running.answer(head, body)
    assert (status, action["state"]) == (202, "queued")
