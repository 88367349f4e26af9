"""Common parts of a resident's actions: an action starts, handles events, and ends with one reply."""

import time

from .events import Events
from .processes import Spawner


class Surroundings:
    """Shared state of the actions of one environment."""

    def __init__(self, events: Events, cwd: str, env: "dict[str, str]") -> None:
        self.events = events
        self.spawner = Spawner()
        self.cwd = cwd
        self.env = env


class Reply:
    """The end of an action."""

    def __init__(self, passed: "bool | None", output: "dict[str, object]", reason: str = "") -> None:
        self.ended_by = "done"
        self.passed = passed
        self.output = output
        self.reason = reason
        self.parts: list[tuple[str, bytes]] = []


def failed(error: str, **output: object) -> Reply:
    """Return a reply for an action that failed for a reason of its own."""
    output["error"] = error
    return Reply(False, output, error)


def words(error: OSError, path: str) -> str:
    """Return a system error as text, the same for all actions."""
    return f"{error.strerror or error}: {path}"


class Action:
    """A running action. `finish` is called once; before that the loop may call `out_of_time` and `cancel`."""

    def __init__(self, around: Surroundings, timeout_s: float) -> None:
        self.around = around
        self.reply: Reply | None = None
        self.ended_by = "done"
        """Why it ends: `done`, `wall-limit`, `cancelled`."""
        self._began = time.monotonic()
        self.wall_s = 0.0
        self._timeout_s = timeout_s
        self._timer = around.events.after(timeout_s, self._out_of_time)

    def finish(self, reply: Reply) -> None:
        if self.reply is not None:
            return
        self.around.events.forget(self._timer)
        self.wall_s = time.monotonic() - self._began
        if self.ended_by != "done":
            reply.ended_by = self.ended_by
            reply.passed = None
            reply.reason = "cancelled"
            if self.ended_by == "wall-limit":
                reply.reason = f"still running after {self._timeout_s:g} s"
        self.reply = reply

    def _out_of_time(self) -> None:
        self._stop("wall-limit")

    def cancel(self) -> None:
        """End its foreground processes soon."""
        self._stop("cancelled")

    def _stop(self, why: str) -> None:
        if self.reply is None and self.ended_by == "done":
            self.ended_by = why
            self.end()

    def end(self) -> None:
        """Make it end; a call of `finish` follows."""
        raise NotImplementedError
