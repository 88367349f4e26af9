"""Recording of the dispatcher's stimuli: a bounded log on disk for `treadle replay dispatch`.

`record` costs the leader's turn an append. A thread encodes and writes the calls every half second, so a killed process
loses up to that. When a segment has reached a quarter of the bound, the next one begins with the dispatcher's state,
and older segments are deleted. If more than `MOST_COPIED` actions are unanswered, the copy of the state would block the
leader; recording then stops at half of the bound until fewer are. The bound is about the calls: a state adds up to
6 MB to a segment.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import Stimulus
from shared.policy.model.formulation import Command
from shared.runtime import log
from shared.runtime.units import Epoch, Seconds
from shared.store.dispatch_log import NAME, DispatchLogSegment, HandledCall, state_of

_log = log.get(__name__)

WRITE_EVERY_S: Final[Seconds] = 0.5
MOST_COPIED: Final = 10_000
"""Most unanswered actions whose state is copied at once: 0.2 s."""
MOST_PENDING: Final = 50_000
"""Most calls that wait to be written. Beyond it they are dropped, and the next segment begins with the state."""
KEPT: Final = 2
"""Segments that are kept: the present and the former one. As many of failures."""
FAILED: Final = "failed-"
"""Prefix of the segments that end with a failure."""


class DispatchRecorder:
    """Log of one term of a leader."""

    def __init__(self, folder: Path, epoch: Epoch, dispatcher: Dispatcher, *, most_bytes: int) -> None:
        """Begin the first segment. Call it before the dispatcher's first stimulus.

        Raises:
            OSError: it cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._epoch, self._dispatcher = folder, epoch, dispatcher
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._pending: list[HandledCall | bytes] = []
        """Calls, and the states with which later segments begin."""
        self._due = self._broken = False
        self._serial = 0
        self._segment = self._begin(b"")

    def record(self, now: Seconds, given: tuple[Stimulus, ...], commands: Sequence[Command]) -> None:
        """Record one call of `Dispatcher.handle`, after it."""
        if self._broken or not given:
            return
        self._pending.append(HandledCall(now, given, commands))
        if len(self._pending) > MOST_PENDING:
            _log.warning("stimulus_log_gap", calls=len(self._pending))
            self._pending.clear()
            self._due = True
        if self._due and self._dispatcher.unanswered <= MOST_COPIED:
            self._due = False
            self._pending.append(state_of(self._dispatcher))

    def failed(self, now: Seconds, given: tuple[Stimulus, ...]) -> Path | None:
        """Write the log up to a call that raised, and keep it. Returns its path; None if it could not be written."""
        self._pending.append(HandledCall(now, given, None))
        self._write()
        with self._lock:
            if self._broken:
                return None
            self._broken = True
            self._segment.close()
            return self._segment.path.rename(self._folder / f"{FAILED}{self._segment.path.name}")

    async def run(self) -> None:
        """Write, until cancelled."""
        while not self._broken:
            await asyncio.sleep(WRITE_EVERY_S)
            await asyncio.to_thread(self._write)

    def close(self) -> None:
        """Write the rest."""
        self._write()
        self._broken = True
        self._segment.close()

    def _write(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, []
            try:
                for item in _runs(pending):
                    if isinstance(item, bytes):
                        self._segment.close()
                        self._segment = self._begin(item)
                    elif not self._broken and 2 * self._segment.size < self._most_bytes:
                        self._segment.write(item)
                if 4 * self._segment.size > self._most_bytes:
                    self._due = True
            except OSError as error:
                if not self._broken:
                    _log.warning("stimulus_log_failed", path=str(self._segment.path), error=str(error))
                self._broken = True

    def _begin(self, state: bytes) -> DispatchLogSegment:
        self._serial += 1
        path = self._folder / f"{NAME}-{self._epoch}-{self._serial}.log"
        segment = DispatchLogSegment(path, self._epoch, self._dispatcher.config, state)
        for prefix in ("", FAILED):
            for older in sorted(self._folder.glob(f"{prefix}{NAME}-*.log"), key=_age)[:-KEPT]:
                older.unlink(missing_ok=True)
        return segment


def _age(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]


def _runs(pending: list[HandledCall | bytes]) -> list[list[HandledCall] | bytes]:
    """Group consecutive calls."""
    runs: list[list[HandledCall] | bytes] = []
    for item in pending:
        if isinstance(item, bytes):
            runs.append(item)
        elif runs and isinstance(runs[-1], list):
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs
