"""docker-compose.yml on this machine's engine, with images made here instead of those of a registry."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_server
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[3]
CONTAINERS = Path(__file__).parent
READY_S = 120.0
SECRET = {
    "value": "a-secret-of-the-containers",
    "tenants": ["*"],
    "hosts": ["http://proxy:8700"],
    "header": "Authorization",
}

Json = dict[str, Any]


@dataclass(frozen=True)
class Composed:
    """A project of Compose."""

    name: str
    port: int
    base: str
    """Base image of the services: a Debian with Python and bash."""
    compose: list[str]
    """The command with our files, without docker-compose.engine.yml."""
    secrets: Path
    """File of the quota manager's secrets."""

    @property
    def url(self) -> str:
        """URL of the proxy."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def image(self) -> str:
        """Image of all services."""
        return f"{self.name}:mesh"

    @property
    def with_engine(self) -> list[str]:
        """The command with docker-compose.engine.yml added."""
        return [*self.compose, "--file", str(CHECKOUT / "docker-compose.engine.yml")]

    @property
    def environ(self) -> dict[str, str]:
        """Variables that our files and the engine's command read."""
        return {
            "COMPOSE_PROJECT_NAME": self.name,
            "DOCKER_BUILDKIT": "0",
            "BASE_IMAGE": self.base,
            "TREADLE_IMAGE": self.image,
            "PROXY_PORT": str(self.port),
            "TRAJECTORY_ROUTER_PORT": "0",
            "QUOTA_SECRETS_FILE": str(self.secrets),
            "QUOTA_MANAGER_SECRETS": "/run/quota-secrets.json",
        }

    def run(self, *argv: str, timeout_s: float = 600, environ: Mapping[str, str] | None = None) -> str:
        """Run a command in the checkout, with further variables. Return its output."""
        everything = {**os.environ, **self.environ, **(environ or {})}
        done = subprocess.run(
            argv, cwd=CHECKOUT, env=everything, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def container(self, service: str) -> str:
        """Id of the service's container."""
        return self.run(*self.with_engine, "ps", "--quiet", service).strip()

    @contextmanager
    def gpu_manager(self, **environ: str) -> Iterator[str]:
        """Start the profile `gpu` with these variables. Yield the id of its container once that is healthy."""
        command = [*self.compose, "--profile", "gpu"]
        self.run(*command, "up", "--detach", "--no-build", "gpu_manager", environ=environ)
        try:
            container = self.run(*command, "ps", "--quiet", "gpu_manager").strip()
            deadline = time.monotonic() + READY_S
            while self.run("docker", "inspect", "--format", "{{.State.Health.Status}}", container) != "healthy\n":
                assert time.monotonic() < deadline, self.run(
                    *command, "logs", "--no-color", "--tail", "20", "gpu_manager"
                )
                time.sleep(0.2)
            yield container
        finally:
            self.run(*command, "rm", "--stop", "--force", "gpu_manager")

    def await_node(self, runtime: str = "") -> Json:
        """The node, once the proxy has one that takes work and makes environments that way; two minutes at most."""
        deadline = time.monotonic() + READY_S
        while True:
            try:
                nodes = self.call("GET", "/v1/nodes")["nodes"]
            except OSError:  # not listening yet, or not ready
                nodes = []
            for node in nodes:
                if node["state"] == "ready" and (not runtime or runtime in node["runtimes"]):
                    return dict(node)
            assert time.monotonic() < deadline, f"no node became ready: {nodes}"
            time.sleep(0.2)

    def call(self, method: str, path: str, body: Json | None = None) -> Json:
        """The proxy's answer."""
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=90) as answer:
            found: Json = json.loads(answer.read())
            return found

    def down(self) -> None:
        """Remove containers, volumes and the services' image."""
        self.run(*self.with_engine, "down", "--volumes", "--remove-orphans", "--timeout", "20")
        self.run("docker", "image", "rm", "--force", self.image)

    def shim(self, folder: Path) -> Path:
        """Write a command `docker` into a new folder: `docker compose ARGUMENTS` is our command with these arguments.

        So a document's `docker compose up` works here, with our files, and also with the older `docker-compose`.
        """
        engine = shutil.which("docker") or "docker"
        composes = f'if [ "$1" = compose ]; then shift; exec {shlex.join(self.compose)} "$@"; fi'
        path = folder / "bin" / "docker"
        path.parent.mkdir()
        path.write_text(f'#!/bin/sh\n{composes}\nexec {engine} "$@"\n')
        path.chmod(0o755)
        return path.parent


@contextmanager
def composed(folder: Path) -> Iterator[Composed]:
    """The mesh in containers, its node ready; all of it is removed. Three minutes, half of them for the base image."""
    name = f"treadletest{os.getpid()}"
    secrets = folder / "secrets.json"
    secrets.touch(mode=0o600)
    secrets.write_text(json.dumps({"judge_key": SECRET}))
    mesh = Composed(name, _free_port(), f"{name}:base", _command(folder), secrets)
    with tempfile.TemporaryDirectory(prefix="treadle-image-", dir="/var/tmp") as work:
        mesh.run("tests/e2e/containers/base_image.sh", mesh.base, work)
    try:
        mesh.run(*mesh.compose, "up", "--build", "--detach")
        mesh.await_node()
        yield mesh
    finally:
        print(mesh.run(*mesh.with_engine, "logs", "--no-color", "--tail", "60"))  # noqa: T201 - shown of failed tests
        mesh.down()
        mesh.run("docker", "image", "rm", "--force", mesh.base)


def _free_port() -> int:
    with closing(create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def _command(folder: Path) -> list[str]:
    """Return ``docker compose`` if the plugin is installed, else the older ``docker-compose``, with our files.

    The older one rejects ``systempaths=unconfined``; without that line the node uses Landlock instead of namespaces.
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
