"""The model server as a process, and a client of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

COMMAND = (sys.executable, "-m", "services.gpu_manager.torch_server")
START_S = 60.0
CALL_S = 60.0


@dataclass(frozen=True)
class RunningServer:
    process: subprocess.Popen[str]
    folder: Path
    client: httpx.Client

    @property
    def url(self) -> str:
        return str(self.client.base_url)

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return self.client.post(path, json=body)

    def result(self, path: str, body: Any) -> Any:
        """Return the JSON of an answer that should be 200."""
        answer = self.post(path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get("/state").json()
        return found


@contextmanager
def running_server(folder: Path, *options: str) -> Iterator[RunningServer]:
    """Start a server at a free port, and stop it."""
    arguments = (*COMMAND, "--model", str(folder), "--port", "0", "--threads", "1", *options)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            assert line, process.stderr.read()
            url = f"http://127.0.0.1:{json.loads(line)['port']}"
            with httpx.Client(base_url=url, timeout=CALL_S) as client:
                yield RunningServer(process, folder, client)
        finally:
            process.terminate()
            process.communicate(timeout=START_S)


def failed_start(folder: Path, *options: str) -> tuple[int, str]:
    """Start a server that should not serve. Return its exit status and its standard error."""
    ended = subprocess.run(
        (*COMMAND, "--model", str(folder), "--port", "0", *options),
        capture_output=True, text=True, timeout=START_S, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stderr
