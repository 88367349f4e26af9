"""Real llama.cpp workers: processes that serve Gemma 3 270M (253 MB, 4 bits) on one core each.

A start takes 1.4 s, and a worker needs about 450 MB. It is a base model without chat template and tool calls.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec

from tests.services.trajectory_router.engine import free_port
from treadle.stack.process import Launch
from treadle.testing.llamacpp import gemma_weights
from treadle.testing.servers import clean_environment, running

PROCESS = "tests.services.trajectory_router.engines.llamacpp_process"
SLOTS = 2
CONTEXT = 2048
"""Tokens of one slot."""
LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class LlamaWorker:
    """One running llama.cpp server."""

    url: str
    port: int
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """`kill -9`, and wait for its end."""
        self.process.kill()
        self.process.wait(30)

    def slots(self) -> list[dict[str, Any]]:
        """Return `GET /slots`. Call it rarely: each call delays the end of an aborted one (facts-token-records)."""
        return list(self._read("/slots"))

    def busy(self) -> int:
        """Return the number of slots that compute."""
        return sum(bool(slot["is_processing"]) for slot in self.slots())

    def detokenize(self, ids: list[int]) -> str:
        """Return the text of token ids."""
        return str(self._read("/detokenize", {"tokens": ids})["content"])

    def _read(self, path: str, body: object = None) -> Any:
        data = None if body is None else msgspec.json.encode(body)
        with urlopen(Request(self.url + path, data=data), timeout=LIMIT_S) as response:
            return msgspec.json.decode(response.read())


@contextmanager
def running_llamacpp(*, port: int = 0, slots: int = SLOTS, context: int = CONTEXT) -> Iterator[LlamaWorker]:
    """Serve the model as a process until the block ends. `port`: 0 for any; a killed worker's to restart it."""
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    argv = (sys.executable, "-m", PROCESS, str(gemma_weights()), str(port), str(slots), str(context))
    launch = Launch("llamacpp", argv, clean_environment(), cwd=Path.cwd())
    with running(launch, lambda _: _serves(url)) as process:
        yield LlamaWorker(url, port, process)


def _serves(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
