"""Health of the engine proxy and of the engine behind it: `python -m services.engine_proxy.probe SOCKET`.

It runs every few seconds, so it imports very little.
"""

from __future__ import annotations

import socket
import sys

PROBE_S = 3.0


def problem(path: str) -> str | None:
    """Return why the engine does not answer through the engine proxy, or None."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PROBE_S)
        try:
            connection.connect(path)
            connection.sendall(b"GET /_ping HTTP/1.1\r\nHost: engine\r\n\r\n")
            answer = connection.recv(4096).decode("latin-1")
        except OSError as error:
            return f"{path}: {error!r}"
    return None if answer.startswith("HTTP/1.1 200 ") else f"{path}: {answer}"


if __name__ == "__main__":
    sys.exit(problem(sys.argv[1]))
