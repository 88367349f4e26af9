"""Allowed fields of containers. The engine receives the decoded body, not the sent one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.services.engine_proxy.scripted_engine import EXEC_OF_OURS, NODE, OURS, ProxyUnderTest

CREATE = "/v1.41/containers/create?name=treadle-x"
EXEC = f"/v1.41/containers/{OURS}/exec"
UPDATE = f"/v1.41/containers/{OURS}/update"

ENVIRONMENT: dict[str, Any] = {
    "Image": "sha256:" + "e" * 64,
    "Labels": {"treadle.node": NODE, "treadle.trajectory": "t1"},
    "Cmd": ["sh", "-c", "cat"],
    "Env": ["A=b"],
    "OpenStdin": True,
    "HostConfig": {
        "NetworkMode": "none",
        "CapDrop": ["ALL"],
        "CapAdd": ["CHOWN", "SETUID"],
        "SecurityOpt": ["no-new-privileges"],
        "Memory": 1 << 30,
        "PidsLimit": 256,
        "Mounts": [
            {"Type": "volume", "Source": "treadle-agent-node-7-0123456789ab", "Target": "/run/c", "ReadOnly": True},
            {"Type": "volume", "Target": "/work", "VolumeOptions": {"Labels": {"treadle.mesh": "0123456789abcdef"}}},
        ],
        "Tmpfs": {"/tmp": "rw,size=64m,mode=1777"},
        "StorageOpt": {"size": "1024m"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}},
        "Init": True,
    },
}

OF_THE_HOST: list[dict[str, Any]] = [
    {"Privileged": True},
    {"Binds": ["/:/host"]},
    {"Binds": []},
    {"Mounts": [{"Type": "bind", "Source": "/", "Target": "/host"}]},
    {"Mounts": [{"Type": "volume", "Source": "treadle_engine", "Target": "/run"}]},
    {"Mounts": [{"Type": "volume", "Source": "treadle-agent-node-8-0123456789ab", "Target": "/run"}]},
    {"Mounts": [{"Type": "volume", "Source": "x_treadle-agent-node-7-0123456789ab", "Target": "/run"}]},
    {"Mounts": [{"Type": "volume", "Source": "/", "Target": "/host"}]},
    {"Mounts": [{"Type": "tmpfs", "Target": "/x"}, {"Type": "npipe", "Source": "/", "Target": "/x"}]},
    {"Mounts": [{"Type": "volume", "Target": "/x", "VolumeOptions": {"DriverConfig": {"Options": {"device": "/"}}}}]},
    {"Mounts": [{"Type": "volume", "Target": "/x", "BindOptions": {"Propagation": "shared"}}]},
    {"Mounts": [{"Type": "volume", "type": "bind", "Source": "/", "Target": "/x"}]},
    {"VolumesFrom": ["cpu_manager"]},
    {"VolumeDriver": "local"},
    {"Devices": [{"PathOnHost": "/dev/sda", "PathInContainer": "/dev/sda", "CgroupPermissions": "rwm"}]},
    {"DeviceRequests": [{"Driver": "nvidia", "Count": -1}]},
    {"DeviceCgroupRules": ["a *:* rwm"]},
    {"CapAdd": ["SYS_ADMIN"]},
    {"CapAdd": ["ALL"]},
    {"CapAdd": ["CAP_SYS_PTRACE"]},
    {"Capabilities": ["SYS_ADMIN"]},
    {"SecurityOpt": ["seccomp=unconfined"]},
    {"SecurityOpt": ["no-new-privileges", "apparmor=unconfined"]},
    {"SecurityOpt": ["no-new-privileges:false"]},
    {"SecurityOpt": ["systempaths=unconfined"]},
    {"MaskedPaths": []},
    {"ReadonlyPaths": []},
    {"NetworkMode": "host"},
    {"NetworkMode": "container:valkey"},
    {"NetworkMode": "treadle_default"},
    {"PidMode": "host"},
    {"PidMode": "container:valkey"},
    {"IpcMode": "host"},
    {"IpcMode": "shareable"},
    {"UTSMode": "host"},
    {"UsernsMode": "host"},
    {"CgroupnsMode": "host"},
    {"Cgroup": "container:valkey"},
    {"CgroupParent": "/"},
    {"Runtime": "other"},
    {"Sysctls": {"kernel.core_pattern": "|/x"}},
    {"PortBindings": {"80/tcp": [{"HostPort": "80"}]}},
    {"PublishAllPorts": True},
    {"Links": ["valkey:valkey"]},
    {"ExtraHosts": ["valkey:10.0.0.2"]},
    {"Dns": ["10.0.0.2"]},
    {"GroupAdd": ["0"]},
    {"OomKillDisable": True},
    {"OomScoreAdj": -1000},
    {"RestartPolicy": {"Name": "always"}},
    {"LogConfig": {"Type": "gelf", "Config": {"gelf-address": "udp://10.0.0.2:1"}}},
    {"LogConfig": {"Type": "json-file", "Config": {"env": "x"}}},
    {"Tmpfs": {"/tmp": "bind,/etc"}},
    {"Tmpfs": {"/tmp": "rw,remount"}},
    {"Tmpfs": {"/tmp": "rw,nosuid,suid"}},
    {"Tmpfs": {"/tmp": "bind"}},
    {"Tmpfs": {"relative": "rw"}},
    {"StorageOpt": {"size": "1m", "overlay2.override_kernel_check": "1"}},
    {"Ulimits": [{"Name": "nofile", "Soft": 1, "Hard": 1, "Extra": 1}]},
    {"CpusetCpus": "0\n"},
    {"Memory": "1g"},
    {"Memory": True},
    {"ContainerIDFile": "/etc/cron.d/x"},
    {"Isolation": "process"},
    {"Unheard": 0},
    # as Go's decoder would also read them
    {"privileged": True},
    {"PRIVILEGED": True},
    {"Bind\u017f": ["/:/host"]},  # encoding/json folds the long s to s
    {"binds": ["/:/host"]},
    {"pidMode": "host"},
    {"networkmode": "host"},
]

BESIDE_THE_HOST: list[dict[str, Any]] = [
    {"Volumes": {"/data": {}}},
    {"NetworkingConfig": {"EndpointsConfig": {"treadle_default": {}}}},
    {"ExposedPorts": {"80/tcp": {}}},
    {"MacAddress": "02:42:ac:11:00:02"},
    {"Healthcheck": {"Test": ["CMD", "x"]}},
    {"hostconfig": {"Privileged": True}},
    {"hostConfig": {"Privileged": True}},
    {"Labels": {}},
    {"Labels": {"treadle.node": "node-8"}},
    {"Labels": {"Treadle.Node": NODE}},
    {"Labels": {"treadle.node": NODE, "x": 1}},
    {"labels": {"treadle.node": NODE}, "Labels": {"treadle.node": "node-8"}},
    {"HostConfig": [{"Privileged": True}]},
    {"Cmd": "sh -c x"},
]


async def test_an_environment_reaches_the_engine_field_by_field(proxy: ProxyUnderTest) -> None:
    status, _ = await proxy.call("POST", CREATE, json.dumps(ENVIRONMENT).encode())
    assert status == 200
    (forwarded,) = proxy.engine.received
    head, _, body = forwarded.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1.41/containers/create?name=treadle-x HTTP/1.1\r\n")
    assert json.loads(body) == ENVIRONMENT


@pytest.mark.parametrize("fields", OF_THE_HOST, ids=json.dumps)
async def test_nothing_of_the_host_is_given_to_a_container(proxy: ProxyUnderTest, fields: dict[str, Any]) -> None:
    asked = {**ENVIRONMENT, "HostConfig": {**ENVIRONMENT["HostConfig"], **fields}}
    status, body = await proxy.call("POST", CREATE, json.dumps(asked).encode())
    assert status == 403
    assert "allowed here" in json.loads(body)["message"]
    assert proxy.engine.received == []


@pytest.mark.parametrize("fields", BESIDE_THE_HOST, ids=json.dumps)
async def test_a_container_is_ours_and_has_only_known_fields(proxy: ProxyUnderTest, fields: dict[str, Any]) -> None:
    status, _ = await proxy.call("POST", CREATE, json.dumps({**ENVIRONMENT, **fields}).encode())
    assert status == 403
    assert proxy.engine.received == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"Image":"x","Labels":{"treadle.node":"node-7"},"HostConfig":{"Privileged":false,"Privileged":true}}',
        b'{"Image":"x","Labels":{"treadle.node":"node-7"},"HostConfig":{"Privileged":false,"Privil\\u0065ged":true}}',
        b'{"Image":"x","Labels":{"treadle.node":"node-7"},"HostConfig":{},"HostConfig":{"NetworkMode":"none"}}',
        b'{"Image":"x","Labels":{"treadle.node":"node-8","treadle.node":"node-7"}}',
        b'{"Image":"x","Labels":{"treadle.node":"node-7"}} {"HostConfig":{"Privileged":true}}',
        b'{"Image":"x","Labels":{"treadle.node":"node-7"},"HostConfig":{"Memory":NaN}}',
        b'{"Image":"x","Labels":{"treadle.node":"node-7"},"User":"\\ud800"}',
        b'{"Image":"\xff","Labels":{"treadle.node":"node-7"}}',
        b'\xef\xbb\xbf{"Image":"x","Labels":{"treadle.node":"node-7"}}',
        '{"Image":"x","Labels":{"treadle.node":"node-7"}}'.encode("utf-16"),
        b'{"Image":"x",/**/"Labels":{"treadle.node":"node-7"}}',
        b"[" * 100_000,
        b'{"Image":' * 50_000,
    ],
)
async def test_ambiguous_json_is_rejected(proxy: ProxyUnderTest, body: bytes) -> None:
    status, _ = await proxy.call("POST", CREATE, body)
    assert status == 400
    assert proxy.engine.received == []


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"7", b'"x"'])
async def test_a_container_needs_a_body(proxy: ProxyUnderTest, body: bytes) -> None:
    assert (await proxy.call("POST", CREATE, body))[0] == 403
    assert proxy.engine.received == []


async def test_a_body_has_a_bound(proxy: ProxyUnderTest) -> None:
    large = json.dumps({**ENVIRONMENT, "Env": ["x" * (1 << 20)]}).encode()
    assert (await proxy.call("POST", CREATE, large))[0] == 413
    assert proxy.engine.received == []


@pytest.mark.parametrize(
    ("target", "body"),
    [
        (EXEC, {"Cmd": ["id"], "Privileged": True}),
        (EXEC, {"Cmd": ["id"], "privileged": True}),
        (EXEC, {"Cmd": ["id"], "DetachKeys": "ctrl-p"}),
        (EXEC, {"Cmd": "id"}),
        (EXEC, {}),
        (f"/v1.41/exec/{EXEC_OF_OURS}/start", {"Detach": False, "Privileged": True}),
        (UPDATE, {"CpusetCpus": "0", "RestartPolicy": {"Name": "always"}}),
        (UPDATE, {"CpusetCpus": "0", "Devices": []}),
        (UPDATE, {"cpusetcpus": "0"}),
        (UPDATE, {"CpusetCpus": "0; x"}),
        (UPDATE, {"CgroupParent": "/"}),
        (f"/v1.41/containers/{OURS}/start", {"Privileged": True}),
        (f"/v1.41/containers/{OURS}/start", {"Binds": ["/:/host"]}),
        (f"/v1.41/containers/{OURS}/kill", {"x": 1}),
        ("/v1.41/images/create?fromImage=x", {"x": 1}),
    ],
)
async def test_other_bodies_have_no_unknown_fields_either(
    proxy: ProxyUnderTest, target: str, body: dict[str, Any]
) -> None:
    assert (await proxy.call("POST", target, json.dumps(body).encode()))[0] == 403
    assert proxy.engine.received == []


async def test_an_exec_and_an_update_reach_the_engine(proxy: ProxyUnderTest) -> None:
    asked = {"Cmd": ["id"], "AttachStdout": True, "Privileged": False, "detachKeys": "", "Container": OURS, "Env": None}
    assert (await proxy.call("POST", EXEC, json.dumps(asked).encode()))[0] == 200
    assert (await proxy.call("POST", UPDATE, b'{"CpusetCpus":"0,2"}'))[0] == 200
    assert [json.loads(forwarded.partition(b"\r\n\r\n")[2]) for forwarded in proxy.engine.received] == [
        {"Cmd": ["id"], "AttachStdout": True, "Container": OURS},
        {"CpusetCpus": "0,2"},
    ]
