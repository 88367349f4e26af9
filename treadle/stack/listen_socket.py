"""A listening socket that the supervisor owns and each incarnation of a service inherits.

So the port stays ours, and a client that connects during a restart waits in the backlog and is not refused. If a
service ends repeatedly, its socket is closed, so that clients get an error at once.
"""

import errno
import socket

from shared.runtime.stack_state import StackError

BACKLOG = 2048  # uvicorn's own default


class ListenSocket:
    """An address to listen on. Port 0 becomes a free port at the first opening, and stays the same."""

    def __init__(self, host: str, port: int, setting: str = "") -> None:
        """`setting`: how to choose another port, for the message of a taken one."""
        self._host = host
        self._port = port
        self._setting = setting
        self._socket: socket.socket | None = None

    def open(self) -> int:
        """Listen, if not done yet. Return the file descriptor to inherit.

        Raises:
            StackError: the address is taken or not ours.
        """
        if self._socket is None:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            try:
                self._socket = socket.create_server((self._host, self._port), family=family, backlog=BACKLOG)
            except OSError as error:
                taken = error.errno == errno.EADDRINUSE and self._setting
                how = f"; choose another port with {self._setting}" if taken else ""
                raise StackError(f"cannot listen on {self._host}:{self._port}: {error.strerror}{how}") from error
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
