"""Readiness probes over a plain socket. The supervisor needs no HTTP client."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

PROBE_TIMEOUT_S = 3.0

Probe = Callable[[int], Coroutine[Any, Any, str | None]]
"""Takes the pid of a running process. Returns why it is not ready, or None when it is."""


async def http_problem(host: str, port: int, path: str, *, timeout_s: float = PROBE_TIMEOUT_S) -> str | None:
    """Return why ``GET path`` does not answer 200, or None. Uses one connection and closes it."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                answer = await reader.read()
            finally:
                writer.close()
    except TimeoutError:
        return f"{path} gave no answer in {timeout_s:.0f} s"
    except OSError as error:
        return f"{path}: {error}"
    status, _, body = answer.decode(errors="replace").partition("\r\n\r\n")
    if status.startswith("HTTP/1.1 200"):
        return None
    return f"{path}: {status.splitlines()[0] if status else 'closed without an answer'} {body}".strip()


def service_probe(host: str, port: int) -> Probe:
    """Return a probe: ready when ``/healthz`` (the process answers) and then ``/readyz`` (it can work) answer 200."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)

    async def probe(_: int) -> str | None:
        return await http_problem(reachable, port, "/healthz") or await http_problem(reachable, port, "/readyz")

    return probe


def check_probe(check: Callable[[int], bool], lacking: str) -> Probe:
    """Return a probe that runs a short blocking check."""

    async def probe(pid: int) -> str | None:
        return None if await asyncio.to_thread(check, pid) else lacking

    return probe


def main() -> None:
    """``python -m treadle.stack.probes PORT``: exit status 0 if the service there is ready. For health checks."""
    sys.exit(asyncio.run(service_probe("127.0.0.1", int(sys.argv[1]))(0)))


if __name__ == "__main__":
    main()
