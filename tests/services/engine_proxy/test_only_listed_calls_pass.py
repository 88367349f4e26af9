"""Calls that are not on the list are rejected by the engine proxy. No byte of them reaches the engine."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from tests.services.engine_proxy.scripted_engine import (
    EXEC_OF_FOREIGN,
    EXEC_OF_OURS,
    FOREIGN,
    NODE,
    OURS,
    ProxyUnderTest,
)

AGENT_VOLUME = f"treadle-agent-{NODE}-0123456789ab"

PASSING = [
    ("GET", "/_ping", "/_ping"),
    ("GET", "/v1.41/version", "/v1.41/version"),
    ("GET", "/v1.45/info", "/v1.45/info"),
    ("GET", "/v1.41/images/registry.local:5000/a/b:1.2/json", "/v1.41/images/registry.local:5000/a/b:1.2/json"),
    ("POST", "/v1.41/images/create?fromImage=a%2Fb&tag=1", "/v1.41/images/create?fromImage=a%2Fb&tag=1"),
    ("GET", "/v1.41/images/json", "/v1.41/images/json"),
    ("DELETE", "/v1.41/images/registry.local:5000/a/b:1.2", "/v1.41/images/registry.local:5000/a/b:1.2"),
    ("GET", "/v1.41/containers/ours/json", f"/v1.41/containers/{OURS}/json"),
    ("POST", f"/containers/{OURS}/start", f"/containers/{OURS}/start"),
    ("POST", f"/v1.41/containers/{OURS}/kill?signal=SIGKILL", f"/v1.41/containers/{OURS}/kill?signal=SIGKILL"),
    ("POST", f"/v1.41/containers/{OURS}/pause", f"/v1.41/containers/{OURS}/pause"),
    ("DELETE", "/v1.41/containers/ours?force=True&v=1", f"/v1.41/containers/{OURS}?force=True&v=1"),
    ("GET", f"/v1.41/containers/{OURS}/archive?path=/a%20b", f"/v1.41/containers/{OURS}/archive?path=%2Fa+b"),
    ("GET", f"/v1.41/exec/{EXEC_OF_OURS}/json", f"/v1.41/exec/{EXEC_OF_OURS}/json"),
    ("DELETE", f"/v1.41/volumes/{AGENT_VOLUME}", f"/v1.41/volumes/{AGENT_VOLUME}"),
]

REJECTED = [
    # whole areas of the engine
    ("POST", "/v1.41/build"),
    ("POST", "/v1.41/build?remote=http://example.org/x"),
    ("POST", f"/v1.41/commit?container={OURS}"),
    ("POST", "/v1.41/session"),
    ("POST", "/v1.41/grpc"),
    ("POST", "/v1.41/swarm/init"),
    ("GET", "/v1.41/plugins"),
    ("POST", "/v1.41/plugins/pull?remote=x"),
    ("POST", "/v1.41/volumes/create"),
    ("DELETE", "/v1.41/volumes/treadle_postgres"),
    ("DELETE", "/v1.41/volumes/treadle-agent-node-8-0123456789ab"),
    ("DELETE", f"/v1.41/volumes/{AGENT_VOLUME}0"),
    ("GET", f"/v1.41/volumes/{AGENT_VOLUME}"),
    ("GET", "/v1.41/networks"),
    ("POST", "/v1.41/networks/bridge/connect"),
    ("GET", "/v1.41/secrets"),
    ("GET", "/v1.41/events"),
    ("GET", "/v1.41/images/json?all=1"),
    ("GET", "/v1.41/images/json?filters=%7B%7D"),
    ("DELETE", "/v1.41/images/a?force=1"),
    ("DELETE", "/v1.41/images/a?noprune=1"),
    ("DELETE", "/v1.41/images"),
    ("POST", "/v1.41/images/prune"),
    ("GET", "/v1.41/images/a/history"),
    ("POST", "/v1.41/images/a/tag?repo=b"),
    ("POST", "/v1.41/images/load"),
    ("GET", "/v1.41/images/a/get"),
    ("POST", "/v1.41/images/a/push"),
    ("POST", "/v1.41/auth"),
    ("GET", "/debug/pprof/"),
    ("GET", "/"),
    # calls of our own container
    ("POST", f"/v1.41/containers/{OURS}/rename?name=x"),
    ("POST", f"/v1.41/containers/{OURS}/restart"),
    ("POST", f"/v1.41/containers/{OURS}/checkpoints"),
    ("GET", f"/v1.41/containers/{OURS}/attach/ws"),
    ("GET", f"/v1.41/containers/{OURS}/export"),
    ("POST", "/v1.41/containers/prune"),
    # the wrong method
    ("PUT", "/v1.41/containers/create"),
    ("PATCH", f"/v1.41/containers/{OURS}/json"),
    ("CONNECT", "/_ping"),
    # parameters
    ("POST", "/v1.41/images/create?fromSrc=http://example.org/x.tar"),
    ("POST", "/v1.41/images/create?fromImage=a&repo=b"),
    ("POST", "/v1.41/images/create?fromImage=-"),
    ("POST", "/v1.41/images/create?fromImage=a&changes=USER%20root"),
    ("DELETE", f"/v1.41/containers/{OURS}?link=1"),
    ("DELETE", f"/v1.41/containers/{OURS}?Force=1"),
    ("POST", f"/v1.41/containers/{OURS}/start?checkpoint=x&checkpoint-dir=/etc"),
    ("POST", f"/v1.41/containers/{OURS}/kill?signal=SIGKILL%0d%0aX:1"),
    ("GET", f"/v1.41/containers/{OURS}/json?size=1&size=0"),
    ("GET", f"/v1.41/containers/{OURS}/json?size=1;x=2"),
    ("GET", f"/v1.41/containers/{OURS}/json?size"),
    ("GET", f"/v1.41/containers/{OURS}/archive?path=etc"),
    ("GET", "/_ping?x=1"),
    # paths that a normalizing or decoding reader would read as others
    ("GET", "/v1.41/images/../containers/foreign/json"),
    ("GET", "/v1.41/images/a/../../containers/foreign/json"),
    ("GET", "/v1.41/images/a/./json"),
    ("GET", "/v1.41//containers/ours/json"),
    ("GET", "//v1.41/version"),
    ("GET", "/v1.41/%69nfo"),
    ("GET", "/v1.41/images/%2e%2e/json"),
    ("GET", "/v1.41/images/a%2f..%2f..%2fcontainers%2fforeign/json"),
    ("GET", "/v1.41/containers/ours%2fjson"),
    ("GET", "/v1.41/containers/ours/json/"),
    ("GET", "/v1.41/containers/ours/json%00"),
    ("GET", "/v1.41/containers/ours\\json"),
    ("GET", "/v1.41/containers/ours/json;x"),
    ("GET", "/v1.41/Containers/ours/json"),
    ("GET", "/v1.41/version#x"),
    # versions with other rules for a call
    ("POST", f"/v1.23/containers/{OURS}/start"),
    ("GET", "/v1.39/version"),
    ("GET", "/v2.41/version"),
    ("GET", "/v1.41/v1.41/version"),
    ("GET", "/v1.١/version"),
    # containers and execs of others
    ("GET", f"/v1.41/containers/{FOREIGN}/json"),
    ("POST", "/v1.41/containers/foreign/start"),
    ("DELETE", "/v1.41/containers/foreign?force=1"),
    ("GET", "/v1.41/containers/bare/json"),
    ("GET", "/v1.41/containers/foreign/archive?path=/etc"),
    ("GET", "/v1.41/containers/foreign/logs?stdout=1"),
    ("POST", "/v1.41/containers/foreign/attach?stream=1"),
    ("POST", f"/v1.41/exec/{EXEC_OF_FOREIGN}/start"),
    ("GET", f"/v1.41/exec/{EXEC_OF_FOREIGN}/json"),
    ("GET", f"/v1.41/exec/{EXEC_OF_OURS[:12]}/json"),
]


@pytest.mark.parametrize(("method", "target", "written"), PASSING)
async def test_a_listed_call_reaches_the_engine_as_the_proxy_writes_it(
    proxy: ProxyUnderTest, method: str, target: str, written: str
) -> None:
    status, body = await proxy.call(method, target)
    assert (status, body) == (200, b"ok")
    head = f"{method} {written} HTTP/1.1\r\nHost: engine\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    assert proxy.engine.received == [head.encode()]


@pytest.mark.parametrize(("method", "target"), REJECTED)
async def test_any_other_call_is_rejected_and_nothing_reaches_the_engine(
    proxy: ProxyUnderTest, method: str, target: str
) -> None:
    sent = f"{method} {target} HTTP/1.1\r\nHost: engine\r\nContent-Length: 0\r\n\r\n".encode()
    head, _, body = (await proxy.send(sent)).partition(b"\r\n\r\n")
    assert int(head.split(b" ")[1]) in {400, 403}
    assert json.loads(body).keys() == {"message"}
    assert proxy.engine.received == []


async def test_a_rejection_lists_the_allowed_calls(proxy: ProxyUnderTest) -> None:
    status, body = await proxy.call("POST", "/v1.41/build")
    assert status == 403
    message = json.loads(body)["message"]
    assert message.startswith("POST /v1.41/build does not pass the engine proxy")
    assert "POST /containers/{container}/start" in message


async def test_a_missing_container_is_404_and_not_403(proxy: ProxyUnderTest) -> None:
    status, body = await proxy.call("POST", "/v1.41/containers/nobody/start")
    assert (status, json.loads(body)) == (404, {"message": "No such container: nobody"})


async def test_a_label_is_read_once_for_an_id_and_every_time_for_a_name(proxy: ProxyUnderTest) -> None:
    for _ in range(3):
        assert (await proxy.call("POST", f"/v1.41/containers/{OURS}/pause"))[0] == 200
    assert proxy.engine.inspections == 1
    for _ in range(3):
        assert (await proxy.call("POST", "/v1.41/containers/ours/pause"))[0] == 200
    assert proxy.engine.inspections == 4


@pytest.mark.parametrize(
    ("asked", "received"),
    [
        (None, {"label": [f"treadle.node={NODE}"]}),
        ({"label": ["treadle.node=node-8"]}, {"label": ["treadle.node=node-8", f"treadle.node={NODE}"]}),
        (
            {"label": {"a=b": True}, "status": ["running"]},
            {"label": ["a=b", f"treadle.node={NODE}"], "status": ["running"]},
        ),
    ],
)
async def test_a_listing_shows_ours_alone(proxy: ProxyUnderTest, asked: object, received: object) -> None:
    filters = "" if asked is None else f"&filters={quote(json.dumps(asked))}"
    assert (await proxy.call("GET", f"/v1.41/containers/json?all=1{filters}"))[0] == 200
    (forwarded,) = proxy.engine.received
    assert f"filters={quote(json.dumps(received), safe='')}".replace("%20", "+").encode() in forwarded


@pytest.mark.parametrize(
    "filters",
    [
        '{"ancestor":["x"]}',
        '{"volume":["/"]}',
        '{"label":{"a":false}}',
        '{"label":"a"}',
        '{"Label":["a"]}',
        "[]",
        "{",
        "[" * 90_000,
    ],
)
async def test_other_filters_are_rejected(proxy: ProxyUnderTest, filters: str) -> None:
    status, _ = await proxy.call("GET", f"/v1.41/containers/json?filters={quote(filters)}")
    assert status in {400, 403, 431}
    assert proxy.engine.received == []
