"""docker-compose.yml starts the same mesh, and it grades; with the engine proxy, it has environments of images."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.containers.composed import CHECKOUT, READY_S, Composed, Json, composed
from tests.e2e.readme import PORT, Shell, block, readme_port
from tests.e2e.samples import WORKFLOW, check_answers, mixed
from tests.e2e.trainer import trainer_at

PASSING = "def double(x):\n    return 2 * x\n"
FAILING = "def double(x):\n    return x\n"
TESTS = "assert double(2) == 4\nassert double(-1) == -2\n"
GONE_S = 30.0

CREATE = """
import http.client, json, pathlib, socket
connection = http.client.HTTPConnection("engine")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect("/run/treadle-engine/docker.sock")
body = {"Image": "IMAGE", "Labels": {"treadle.node": "node-1"}, "HostConfig": {"Binds": ["/:/host"]}}
connection.request("POST", "/v1.41/containers/create", json.dumps(body))
answer = connection.getresponse()
message = json.loads(answer.read())["message"]
print(answer.status, message.split(" - ")[0], pathlib.Path("/var/run/docker.sock").exists())
"""

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def mesh(docker: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    if os.geteuid() != 0:
        pytest.skip("making a base image without a registry needs root (debootstrap)")
    if not shutil.which("debootstrap"):
        pytest.skip("debootstrap is not installed: apt-get install debootstrap")
    with composed(tmp_path_factory.mktemp("compose")) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def mesh_with_engine(mesh: Composed) -> Composed:
    """The same with docker-compose.engine.yml: the node is created again, the rest continues."""
    mesh.run(*mesh.with_engine, "up", "--detach", "--no-build")
    mesh.await_node("docker")
    return mesh


@pytest.mark.parametrize(("code", "passed"), [(PASSING, True), (FAILING, False)], ids=["right", "wrong"])
def test_the_containers_grade_a_program(mesh: Composed, code: str, passed: bool) -> None:
    action = {"kind": "code.asserts", "params": {"code": code, "tests": TESTS}}
    accepted = mesh.call("POST", "/v1/actions", action)
    answer = mesh.call("GET", f"/v1/actions/{accepted['id']}?wait=45")
    assert (answer["state"], answer["ended"], answer["passed"]) == ("finished", "ok", passed)


async def test_the_containers_grade_a_batch(mesh: Composed) -> None:
    samples = mixed(24)
    async with trainer_at(mesh.url) as trainer:
        await trainer.declare("composed", WORKFLOW)
        batch = await trainer.open("composed", "step-1", len(samples))
        await trainer.send(batch, samples)
        check_answers(samples, await trainer.follow(batch))
        assert (await trainer.view(batch))["state"] == "complete"


def test_the_node_in_a_container_has_a_sandbox(mesh: Composed) -> None:
    nodes = mesh.call("GET", "/v1/nodes")["nodes"]
    kinds = {node["name"]: node["kinds"] for node in nodes if node["state"] == "ready"}
    assert kinds.keys() == {"node-1", "calls-1"}
    assert "code.asserts" in kinds["node-1"]
    assert kinds["calls-1"] == ["http", "search.retrieve"]


def test_the_quota_manager_alone_has_the_secrets(mesh: Composed) -> None:
    log = mesh.run(*mesh.with_engine, "logs", "--no-color", "quota_manager")
    assert re.search(r'"event": ?"node_started".*"secrets": ?1\b', log) or re.search(
        r'"secrets": ?1\b.*"event": ?"node_started"', log
    ), log
    for service in ("proxy", "cpu_manager", "scaling_planner"):
        files = mesh.run("docker", "exec", mesh.container(service), "ls", "/run")
        assert "quota-secrets.json" not in files


def test_the_profile_gpu_needs_a_description_and_no_file(mesh: Composed) -> None:
    with mesh.gpu_manager(GPU_MANAGER_DEVICES='[{"memory_gb": 24}]') as container:
        deadline = time.monotonic() + READY_S
        while not (shown := mesh.call("GET", "/v1/services"))["gpus"]:
            assert time.monotonic() < deadline, "the proxy shows no GPU"
            time.sleep(0.2)
        (gpu,) = shown["gpus"]
        assert (gpu["node"], gpu["number"], gpu["name"], gpu["memory_gb"]) == ("gpus-1", 0, "described", 24)
        assert shown["services"] == []
        mesh.run("docker", "exec", container, "python", "-c", "import pynvml")
        limits = mesh.run("docker", "inspect", "--format", "{{.HostConfig.Memory}} {{.RestartCount}}", container)
        assert limits == "0 0\n", "engines are in this container: the machine's memory is the limit"


def test_an_engine_of_the_file_judges_in_its_container(mesh: Composed, tmp_path: Path) -> None:
    entry = {
        "backend": "process",
        "model": "judge",
        "command": ["python", "/engine.py", "--port", "{port}", "--model", "{model}"],
        "memory_gb": {"awake": 1},
        "canary": {"prompt": "2+2=", "expect": "4"},
    }
    services = tmp_path / "services.json"
    services.write_text(json.dumps({"judge-a": entry}))
    params = {
        "service": "judge-a",
        "messages": [{"role": "user", "content": "one two three"}],
        "score": {"regex": "counts ([0-9]+)"},
    }
    with mesh.gpu_manager(GPU_MANAGER_DEVICES='[{"memory_gb": 24}]', GPU_MANAGER_SERVICES_FILE=str(services)):
        accepted = mesh.call("POST", "/v1/actions", {"kind": "model.judge", "params": params, "budget_s": 60})
        answer = mesh.call("GET", f"/v1/actions/{accepted['id']}?wait=75")
    assert (answer["state"], answer["ended"], answer.get("score")) == ("finished", "ok", 3), answer
    assert answer["output"]["text"] == "judge counts 3"


def test_the_file_for_gpus_reserves_all_of_them(mesh: Composed) -> None:
    gpus = ["--file", str(CHECKOUT / "docker-compose.gpu.yml"), "--profile", "gpu"]
    config = mesh.run(*mesh.compose, *gpus, "config")
    reserved = re.search(r"reservations:\n +devices:\n((?:  +.*\n)+?) {4}\w", config)
    assert reserved, config
    assert {line.strip(" -") for line in reserved[1].splitlines()} >= {"driver: nvidia", "gpu"}
    assert "count: all" in reserved[1] or "count: -1" in reserved[1]
    assert "reservations:" not in mesh.run(*mesh.compose, "--profile", "gpu", "config")


def test_the_readme_is_followed_in_containers(mesh: Composed, tmp_path: Path) -> None:
    """`README.md`, word by word. Its `docker compose` is `Composed.shim`; its images are those made here."""
    theirs = replace(mesh, name=f"{mesh.name}readme", port=PORT)
    path = f"{CHECKOUT / '.venv/bin'}:{theirs.shim(tmp_path)}:{os.environ['PATH']}"
    with readme_port(), Shell(tmp_path, {**theirs.environ, "PATH": path}) as shell:
        try:
            shell.follow(block("In containers"))
        finally:
            theirs.down()


def test_without_the_engine_proxy_the_node_has_no_engine(mesh: Composed) -> None:
    assert "docker" not in mesh.await_node()["runtimes"]


def test_the_engine_proxy_rejects_a_container_with_files_of_the_host(mesh_with_engine: Composed) -> None:
    node = mesh_with_engine.container("cpu_manager")
    printed = mesh_with_engine.run(
        "docker", "exec", node, "python", "-c", CREATE.replace("IMAGE", mesh_with_engine.base)
    )
    assert printed == "403 Object contains unknown field `Binds` False\n"


def test_a_trajectory_has_a_container_of_the_hosts_engine(mesh_with_engine: Composed) -> None:
    mesh = mesh_with_engine
    environment = {"image": mesh.base, "memory_mb": 256, "setup": ["echo begun >/root/note"]}
    trajectory = mesh.call("POST", "/v1/trajectories", {"environment": environment})["id"]
    assert bash(mesh, trajectory, "cat /root/note; kept=yes; cd /tmp")["output"] == "begun\n"
    assert bash(mesh, trajectory, "echo $kept $PWD; id -u; ls /wheels | wc -l")["output"].startswith("yes /tmp\n0\n")

    (container,) = containers(trajectory)
    shown = mesh.run("docker", "inspect", "--format", "{{.HostConfig.NetworkMode}} {{.State.Paused}}", container)
    assert shown == "none true\n", "between actions nothing in it runs"
    mesh.call("DELETE", f"/v1/trajectories/{trajectory}")
    deadline = time.monotonic() + GONE_S
    while containers(trajectory):
        assert time.monotonic() < deadline, "the container outlives its trajectory"
        time.sleep(0.2)


def bash(mesh: Composed, trajectory: str, line: str) -> Json:
    """The output of a line in the trajectory's shell, which has to end well."""
    action = {"kind": "env.bash", "params": {"line": line}}
    answer = mesh.call("POST", f"/v1/trajectories/{trajectory}/actions?wait=60", action)
    assert (answer["state"], answer["ended"], answer["passed"]) == ("finished", "ok", True), answer
    output: Json = answer["output"]
    return output


def containers(trajectory: str) -> list[str]:
    """Containers of this trajectory on the host's engine."""
    listing = ["docker", "ps", "--all", "--quiet", "--filter", f"label=treadle.trajectory={trajectory}"]
    return subprocess.run(listing, capture_output=True, text=True, timeout=30, check=True).stdout.split()
