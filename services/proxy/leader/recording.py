"""Recording of the dispatcher's stimuli: a bounded log for `treadle replay dispatch`.

`record` costs the leader's turn an append. A thread encodes the calls every half second. A killed process
loses up to that. When a segment has reached a quarter of the
bound, the next one begins with the dispatcher's state, and older segments are deleted. If more than `MOST_COPIED`
actions are unanswered, the copy of the state would block the leader; recording then stops at half of the bound until
fewer are. The bound is about the calls: a state adds up to 6 MB to a segment.

Laws (tests/services/proxy/leader/test_recording.py):
  - a segment has consecutive calls: after calls that were dropped, nothing is recorded until the next state;
  - each call is recorded once. The event loop only appends to the queue and the thread only removes from its front, so
    no call is lost or doubled between them.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
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
"""Most calls that wait to be written. Beyond it calls are dropped until these are written, and the next segment begins
with the state."""
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
        self._epoch, self._dispatcher = epoch, dispatcher
        self._folder = folder
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._pending: deque[HandledCall | bytes] = deque()
        """Calls, and the states with which later segments begin."""
        self._gap = False
        """Calls were dropped after the last one in `_pending`."""
        self._stopped = False
        """Calls were dropped after the last one in the segment."""
        self._broken = False
        """Nothing can be recorded any more."""
        self._full = self._continued = 0
        """Newest segment that has reached its size, set by the thread; and newest one that a state has ended."""
        self._serial = 0
        self._segment = self._begin(b"")

    def record(self, now: Seconds, given: tuple[Stimulus, ...], commands: Sequence[Command]) -> None:
        """Record one call of `Dispatcher.handle`, after it."""
        if self._broken or not given:
            return
        if not self._gap and len(self._pending) >= MOST_PENDING:
            _log.warning("stimulus_log_gap", calls=len(self._pending))
            self._gap = True
        if not self._gap:
            self._pending.append(HandledCall(now, given, commands))
        elif self._pending:
            return
        full = self._full
        if (self._gap or full > self._continued) and self._dispatcher.unanswered <= MOST_COPIED:
            self._gap, self._continued = False, full
            self._pending.append(state_of(self._dispatcher))

    def failed(self, now: Seconds, given: tuple[Stimulus, ...]) -> Path | None:
        """Write the log up to a call that raised, and keep it. Returns its path; None if it could not be written, or
        the calls before are missing.
        """
        if not self._gap:
            self._pending.append(HandledCall(now, given, None))
        self._write()
        with self._lock:
            if self._broken:
                return None
            self._broken = True
            if self._gap or self._stopped:
                self._segment.close()
                return None
            try:
                return self._segment.keep(self._folder / f"{FAILED}{self._name}")
            except OSError as error:
                _log.warning("stimulus_log_failed", path=str(self._folder), error=str(error))
                return None

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

    @property
    def _name(self) -> str:
        return f"{NAME}-{self._epoch}-{self._serial}.log"

    def _write(self) -> None:
        with self._lock:
            pending = [self._pending.popleft() for _ in range(len(self._pending))]
            try:
                for item in _runs(pending):
                    if isinstance(item, bytes):
                        self._segment.close()
                        self._segment = self._begin(item)
                        self._stopped = False
                    elif self._stopped or 2 * self._segment.size >= self._most_bytes:
                        self._stopped = True
                    elif not self._broken:
                        self._segment.write(item)
                if 4 * self._segment.size > self._most_bytes:
                    self._full = self._serial
            except Exception as error:  # noqa: BLE001  # a log must not end a leader
                if not self._broken:
                    _log.warning("stimulus_log_failed", path=str(self._segment.path), error=str(error))
                self._broken = True

    def _begin(self, state: bytes) -> DispatchLogSegment:
        self._serial += 1
        config = self._dispatcher.config
        self._folder.mkdir(parents=True, exist_ok=True)
        segment = DispatchLogSegment(self._folder / self._name, self._epoch, config, state)
        for prefix in ("", FAILED):
            remove_older(self._folder, prefix)
        return segment


def remove_older(folder: Path, prefix: str) -> None:
    """Remove all segments with a prefix but the newest `KEPT`."""
    for older in sorted(folder.glob(f"{prefix}{NAME}-*.log"), key=_age)[:-KEPT]:
        older.unlink(missing_ok=True)


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
