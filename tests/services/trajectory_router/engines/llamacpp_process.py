"""One llama.cpp server as a process: `python -m ...llamacpp_process WEIGHTS PORT SLOTS CONTEXT`."""

from __future__ import annotations

import signal
import sys

import xllamacpp

MODEL = "gemma"
"""Name under which the weights are served."""


def serve(weights: str, port: int, slots: int, context: int) -> None:
    """Serve until a signal ends the process.

    Args:
        weights: path of a GGUF file.
        port: port on 127.0.0.1.
        slots: calls that run at once.
        context: tokens of each slot.
    """
    settings = xllamacpp.CommonParams()
    settings.model.path = weights
    settings.model_alias = {MODEL}
    settings.port = port
    settings.n_parallel = slots
    settings.n_ctx = slots * context
    settings.cpuparams.n_threads = 1  # two workers share two cores
    settings.cpuparams_batch.n_threads = 1
    settings.endpoint_metrics = True
    settings.endpoint_slots = True
    settings.warmup = False
    settings.swa_full = True  # a prefix longer than Gemma's window of 512 tokens stays reusable
    settings.cache_ram_mib = 0  # only slots keep prefixes, so that /slots shows all of them
    server = xllamacpp.Server(settings)
    assert server.listening_address.endswith(f":{port}"), server.listening_address
    signal.pause()


if __name__ == "__main__":
    serve(sys.argv[1], *map(int, sys.argv[2:5]))
