"""A service of twenty lines, for tests of what runs services: ``shared.testing.echo:create_app``.

``ECHO_CRASH`` in its environment makes it die at its start.
"""

import os
import subprocess
from typing import Any

Scope = dict[str, Any]


def create_app() -> Any:
    """A bare ASGI app: ``/healthz`` and ``/readyz`` say yes, ``/orphan`` leaves a daemon behind, ``/exit`` dies."""
    if os.environ.get("ECHO_CRASH"):
        raise SystemExit("told to crash by ECHO_CRASH")

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        body = _answer(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return app


async def _live(receive: Any, send: Any) -> None:
    for phase in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{phase}.complete"})


def _answer(path: str) -> bytes:
    if path == "/exit":
        os._exit(7)
    if path == "/orphan":
        # A daemon as they used to be: forked twice and in a session of its own.
        command = ["/bin/sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo $!"]
        return subprocess.run(command, capture_output=True, timeout=10, check=True).stdout
    return str(os.getpid()).encode()
