"""A listening socket that the supervisor owns and each incarnation of a service inherits.

So a port that was free stays ours, and a client that connects while the service restarts waits in the backlog instead
of being refused. A service that keeps dying has its door closed: then a client should know at once.
"""

import socket

from shared.runtime.stack_errors import StackError

BACKLOG = 2048  # uvicorn's own default


class ListenSocket:
    """An address to listen on; port 0 becomes a free one at the first opening and stays it."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None

    def open(self) -> int:
        """Listen, if we do not yet; the file descriptor to inherit.

        Raises:
            StackError: the address is taken or not ours.
        """
        if self._socket is None:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            try:
                self._socket = socket.create_server((self._host, self._port), family=family, backlog=BACKLOG)
            except OSError as error:
                raise StackError(f"cannot listen on {self._host}:{self._port}: {error.strerror}") from error
            self._port = self._socket.getsockname()[1]
        return self._socket.fileno()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"http://[{self._host}]:{self._port}" if ":" in self._host else f"http://{self._host}:{self._port}"
