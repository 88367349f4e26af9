"""A service of twenty lines, for tests of what runs services: ``treadle.testing.echo:create_app``.

``ECHO_CRASH`` in its environment makes it die at its start; ``ECHO_BUSY_S`` and ``ECHO_IDLE_S`` make its start last so
many seconds more, computing or waiting.
"""

import os
import subprocess
import time
from typing import Any

Scope = dict[str, Any]


def create_app() -> Any:
    """A bare ASGI app: ``/healthz`` and ``/readyz`` answer 200, ``/exit`` dies, and these start processes:

    ``/orphan`` a daemon, ``/child`` a child, ``/leader`` a child in a session of its own. The answer is the pid.
    """
    if os.environ.get("ECHO_CRASH"):
        raise SystemExit("ECHO_CRASH is set: crash")
    time.sleep(float(os.environ.get("ECHO_IDLE_S", "0")))
    until = time.monotonic() + float(os.environ.get("ECHO_BUSY_S", "0"))
    while time.monotonic() < until:
        pass

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _answer_lifespan(receive, send)
            return
        body = _answer(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return app


async def _answer_lifespan(receive: Any, send: Any) -> None:
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
    if path in ("/child", "/leader"):
        command = ["sleep", "300"]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=path == "/leader")
        return str(child.pid).encode()
    return str(os.getpid()).encode()
