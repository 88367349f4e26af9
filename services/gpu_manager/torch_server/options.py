"""Command line of the model server."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.runtime.units import Seconds


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Settings of one server."""

    model: Path
    host: str
    port: int
    device: str
    threads: int
    timeout_s: Seconds
    max_tokens: int
    batch_tokens: int
    queued_tokens: int
    requests: int
    body_bytes: int


def read_options(arguments: Sequence[str]) -> ServerOptions:
    """Return the settings that a command line gives. Ends the process with a message if it is not valid."""
    parser = ArgumentParser(
        prog="python -m services.gpu_manager.torch_server",
        description="Serve one reward model or teacher over HTTP.",
    )
    add = parser.add_argument
    add("--model", type=Path, required=True, help="folder with config.json, tokenizer.json and model.safetensors")
    add("--port", type=_whole(0, 65535), required=True, help="TCP port; 0: any free one, which the first line shows")
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s); callers are not authenticated")
    add(
        "--device",
        default="auto",
        help="cpu or cuda:N; auto: the first GPU if there is any, else the CPU (%(default)s)",
    )
    add("--threads", type=_whole(0, 1024), default=0, help="threads of computations on the CPU; 0: PyTorch's choice")
    add("--timeout-s", type=_seconds, default=60.0, help="limit of one request in seconds (%(default)s)")
    add("--max-tokens", type=_whole(2, 1 << 20), default=8192, help="most tokens of an input (%(default)s)")
    add("--batch-tokens", type=_whole(1, 1 << 24), default=8192, help="tokens of a batch with padding (%(default)s)")
    add("--queued-tokens", type=_whole(1, 1 << 26), default=1 << 18, help="most tokens that wait (%(default)s)")
    add("--requests", type=_whole(1, 65536), default=256, help="most requests at the same time (%(default)s)")
    add("--body-bytes", type=_whole(1024, 1 << 30), default=8 << 20, help="most bytes of a body (%(default)s)")
    return ServerOptions(**vars(parser.parse_args(arguments)))


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and least <= int(text[:12]) <= most:
            return int(text)
        raise ArgumentTypeError(f"{text!r} should be a whole number from {least} to {most}")

    return read


def _seconds(text: str) -> Seconds:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 < value <= 86_400:
        raise ArgumentTypeError(f"{text!r} should be seconds, more than 0 and at most 86400")
    return value
