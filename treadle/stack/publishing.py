"""Publishing of a stack's state, also on a full disk: a failed write is retried."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from shared.runtime.stack_state import StackState, write_state

AGAIN_S = 1.0


class Publisher:
    """Writes ``run/state.json``. Readers check each recorded process, so an outdated file does no harm for long."""

    def __init__(self, root: Path, log: Callable[[str], None]) -> None:
        """``log``: logs a line of the supervisor."""
        self._root = root
        self._log = log
        self._latest: StackState | None = None
        self._again: asyncio.TimerHandle | None = None

    def publish(self, state: StackState) -> None:
        """Write ``state``. On an error, retry every second until it or a later one is written. Raises nothing."""
        self._latest = state
        was_late = self._again is not None
        if self._again is not None:
            self._again.cancel()
            self._again = None
        try:
            write_state(self._root, state)
        except OSError as error:
            if not was_late:
                self._log(f"the state cannot be written: {error}. It is tried again every second")
            self._again = asyncio.get_running_loop().call_later(AGAIN_S, self._write_latest)
            return
        if was_late:
            self._log("the state is written again")

    def _write_latest(self) -> None:
        if self._latest is not None:
            self.publish(self._latest)
