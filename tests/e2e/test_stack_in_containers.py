"""docker-compose.yml brings up the same mesh, and it grades. Images are made here: no registry is asked."""

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from socket import create_server
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
CONTAINERS = Path(__file__).parent / "containers"
PASSING = "def double(x):\n    return 2 * x\n"
FAILING = "def double(x):\n    return x\n"
TESTS = "assert double(2) == 4\nassert double(-1) == -2\n"

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]


def free_port() -> int:
    with closing(create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def compose_command(folder: Path) -> list[str]:
    """``docker compose`` where the plugin is there, else the older ``docker-compose``, with our files.

    The older one cannot say ``systempaths=unconfined``; with it the node climbs to Landlock instead of namespaces.
    """
    ours = CHECKOUT / "docker-compose.yml"
    if subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30, check=False).returncode == 0:
        command = ["docker", "compose"]
    elif shutil.which("docker-compose"):
        command = ["docker-compose"]
        lines = ours.read_text().splitlines(keepends=True)
        ours = folder / "docker-compose.yml"
        ours.write_text("".join(line for line in lines if "systempaths=" not in line or "#" in line))
    else:
        pytest.skip("neither docker compose nor docker-compose is installed")
    files = ["--file", str(ours), "--file", str(CONTAINERS / "embedded.yml")]
    return [*command, "--project-directory", str(CHECKOUT), *files]


def run(*argv: str, environ: dict[str, str]) -> None:
    done = subprocess.run(
        argv, cwd=CHECKOUT, env={**os.environ, **environ}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.fixture(scope="module")
def proxy_url(docker: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if os.geteuid() != 0:
        pytest.skip("making a base image without a registry needs root (debootstrap)")
    if not shutil.which("debootstrap"):
        pytest.skip("debootstrap is not installed: apt-get install debootstrap")
    name, port = f"treadletest{os.getpid()}", free_port()
    environ = {
        "COMPOSE_PROJECT_NAME": name,
        "DOCKER_BUILDKIT": "0",
        "TREADLE_IMAGE": f"{name}:mesh",
        "PROXY_PORT": str(port),
    }
    compose = compose_command(tmp_path_factory.mktemp("compose"))
    with tempfile.TemporaryDirectory(prefix="treadle-image-", dir="/var/tmp") as work:
        run("tests/e2e/containers/base_image.sh", f"{name}:base", work, environ=environ)
    try:
        arguments = {"BASE_IMAGE": f"{name}:base", "TOOLCHAINS": "", "PIP_OPTIONS": "--no-index --find-links /wheels"}
        build = [part for key, value in arguments.items() for part in ("--build-arg", f"{key}={value}")]
        run("docker", "build", "--quiet", *build, "--tag", f"{name}:mesh", ".", environ=environ)
        run(*compose, "up", "--detach", "--no-build", environ=environ)
        await_node(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        print(_logs(compose, environ))  # noqa: T201 - pytest shows it when a test failed
        run(*compose, "down", "--volumes", "--remove-orphans", "--timeout", "20", environ=environ)
        run("docker", "image", "rm", "--force", f"{name}:mesh", f"{name}:base", environ=environ)


def _logs(compose: list[str], environ: dict[str, str]) -> str:
    argv = [*compose, "logs", "--no-color", "--tail", "60"]
    everything = {**os.environ, **environ}
    return subprocess.run(
        argv, cwd=CHECKOUT, env=everything, capture_output=True, text=True, timeout=60, check=False
    ).stdout


def call(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def await_node(proxy: str) -> None:
    """Return once the proxy has a node that takes work; two minutes at most."""
    deadline = time.monotonic() + 120
    while True:
        try:
            nodes = call(f"{proxy}/v1/nodes")["nodes"]
        except OSError:  # not listening yet, or not ready
            nodes = []
        if any(node["state"] == "ready" for node in nodes):
            return
        assert time.monotonic() < deadline, f"no node became ready: {nodes}"
        time.sleep(0.2)


@pytest.mark.parametrize(("code", "passed"), [(PASSING, True), (FAILING, False)], ids=["right", "wrong"])
def test_the_containers_grade_a_program(proxy_url: str, code: str, passed: bool) -> None:
    action = {"kind": "code.asserts", "params": {"code": code, "tests": TESTS}}
    accepted = call(f"{proxy_url}/v1/actions", action)
    answer = call(f"{proxy_url}/v1/actions/{accepted['id']}?wait=45")
    assert (answer["state"], answer["ended"], answer["passed"]) == ("finished", "ok", passed)


def test_the_node_in_a_container_has_a_sandbox(proxy_url: str) -> None:
    nodes = call(f"{proxy_url}/v1/nodes")["nodes"]
    assert [node["name"] for node in nodes] == ["node-1"]
    assert "code.asserts" in nodes[0]["kinds"]
