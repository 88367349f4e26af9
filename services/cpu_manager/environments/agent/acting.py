"""Common parts of an agent's actions: an action starts, handles events, and ends with one reply."""

import time

from .events import Events
from .processes import Spawner


class ActionContext:
    """Shared state of the actions of one environment."""

    def __init__(self, events: Events, cwd: str, env: "dict[str, str]") -> None:
        self.events = events
        self.spawner = Spawner()
        self.cwd = cwd
        self.env = env


class ActionReply:
    """The end of an action."""

    def __init__(self, passed: "bool | None", output: "dict[str, object]", reason: str = "") -> None:
        self.ended_by = "done"
        self.passed = passed
        self.output = output
        self.reason = reason
        self.parts: list[tuple[str, bytes]] = []


def failed(error: str, **output: object) -> ActionReply:
    """Return a reply for an action that failed for a reason of its own."""
    output["error"] = error
    return ActionReply(False, output, error)


def error_text(error: OSError, path: str) -> str:
    """Return a system error as text, the same for all actions."""
    return f"{error.strerror or error}: {path}"


class Action:
    """A running action. `finish` is called once; before that the loop may call `_out_of_time` and `cancel`."""

    def __init__(self, context: ActionContext, timeout_s: float) -> None:
        self.context = context
        self.reply: ActionReply | None = None
        self.ended_by = "done"
        """Why it ends: `done`, `wall-limit`, `cancelled`."""
        self._began = time.monotonic()
        self.wall_s = 0.0
        self._timeout_s = timeout_s
        self._held_at = 0.0
        """Time since which its clock stands still; 0: it runs."""
        self._held_s = 0.0
        self._timer = context.events.after(timeout_s, self._out_of_time)

    def finish(self, reply: ActionReply) -> None:
        if self.reply is not None:
            return
        self.proceed()
        self.context.events.forget(self._timer)
        self.wall_s = time.monotonic() - self._began - self._held_s
        if self.ended_by != "done":
            reply.ended_by = self.ended_by
            reply.passed = None
            reply.reason = "cancelled"
            if self.ended_by == "wall-limit":
                reply.reason = f"still running after {self._timeout_s:g} s"
        self.reply = reply

    def hold(self) -> bool:
        """Stop the clock of its time limit. Return False if the action is already ending."""
        if self.reply is not None or self.ended_by != "done":
            return False
        if not self._held_at:
            self._held_at = time.monotonic()
            self.context.events.forget(self._timer)
        return True

    def proceed(self) -> None:
        """Let the clock of its time limit continue."""
        if self._held_at:
            now = time.monotonic()
            self._held_s += now - self._held_at
            self._held_at = 0.0
            left_s = self._began + self._held_s + self._timeout_s - now
            self._timer = self.context.events.after(left_s, self._out_of_time)

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
