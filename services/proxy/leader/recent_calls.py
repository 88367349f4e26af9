"""Recent calls of the dispatcher in memory, from which a failed call makes a log for `treadle replay dispatch`.

They are encoded only if a call fails, because encoding takes 12 us an action. They begin with the term or with a copy
of the dispatcher's state. When there are many, the state is copied again and the calls are dropped. A small state is
copied early: a pause of the leader for 16,384 dropped values and for the garbage collector, which examines what is
kept, took 8 to 20 ms. While so many actions are unanswered that a copy would block the leader, the calls are kept for
longer; beyond `MOST_CALLS` nothing is recorded until fewer are unanswered. Large outputs of actions are not kept. Of
commands only their number is kept: the replay makes them again, and objects that live on cost the garbage collector
5 us an action.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from services.proxy.leader.recording import FAILED, remove_older
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import AttemptsEnded, RequestsSubmitted, Stimulus
from shared.policy.model.formulation import Command
from shared.policy.model.reports import Ended
from shared.policy.model.results import EMPTY
from shared.runtime import log
from shared.runtime.units import Epoch, Seconds
from shared.store.dispatch_log import NAME, DispatchLogSegment, HandledCall, state_of

_log = log.get(__name__)

FEWEST_CALLS: Final = 1_024
"""Values (calls, requests, ended attempts) after which a small state is copied."""
CALLS: Final = 16_384
"""The same of a large state: some 2 s of a busy mesh, 20 MB."""
BYTES_A_VALUE: Final = 20
"""Size of a state that is copied for one value: about 0.3 us."""
MOST_CALLS: Final = 4 * CALLS
SMALL_BYTES: Final = 1024
"""Outputs up to this size are kept, because a copy without them costs more."""
QUICKLY_COPIED, MOST_COPIED = 1_000, 10_000
"""Unanswered actions whose state is copied at `CALLS` (12 ms), and at `MOST_CALLS` (0.12 s)."""


class RecentCalls:
    """Calls of one term of a leader."""

    def __init__(self, folder: Path | None, epoch: Epoch, dispatcher: Dispatcher) -> None:
        """Begin before the dispatcher's first stimulus. `folder`: of the log of a failure; None: a temporary one."""
        self._folder, self._epoch, self._dispatcher = folder, epoch, dispatcher
        self._calls: list[HandledCall] = []
        self._values = 0
        self._due = FEWEST_CALLS
        """Values after which the state is copied."""
        self._state = b""
        self._gap = False
        """Calls after the last one were not kept."""

    def record(self, now: Seconds, given: tuple[Stimulus, ...], commands: Sequence[Command]) -> None:
        """Record one call of `Dispatcher.handle`, after it."""
        if not self._gap:
            self._values += 1
            for one in given:
                if type(one) is AttemptsEnded:
                    self._values += len(one.ends)
                    given = _without_outputs(given)
                elif type(one) is RequestsSubmitted:
                    self._values += len(one.requests)
            self._calls.append(HandledCall(now, given, len(commands)))
            if self._values < self._due:
                return
        unanswered = self._dispatcher.unanswered
        if unanswered <= (QUICKLY_COPIED if self._values < MOST_CALLS and not self._gap else MOST_COPIED):
            self._calls, self._values, self._gap = [], 0, False
            self._state = state_of(self._dispatcher)
            self._due = max(FEWEST_CALLS, min(CALLS, len(self._state) // BYTES_A_VALUE))
        elif self._values >= MOST_CALLS and not self._gap:
            self._calls, self._gap = [], True

    def failed(self, now: Seconds, given: tuple[Stimulus, ...]) -> Path | None:
        """Write the log up to a call that raised. Returns its path; None if calls are missing, or it cannot be kept."""
        if self._gap:
            return None
        calls = [*self._calls, HandledCall(now, given, None)]
        try:
            folder = self._folder or Path(tempfile.mkdtemp(prefix="treadle-"))
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = folder / f"{FAILED}{NAME}-{self._epoch}-1.log"
            segment = DispatchLogSegment(path, self._epoch, self._dispatcher.config, self._state)
            segment.write(calls)
            segment.close()
            remove_older(folder, FAILED)
        except Exception as error:  # noqa: BLE001  # the failure itself must be reported
            _log.warning("stimulus_log_failed", path=str(self._folder or ""), error=str(error))
            return None
        return path


def _without_outputs(given: tuple[Stimulus, ...]) -> tuple[Stimulus, ...]:
    """Return stimuli without large outputs of actions. The log has none, but memory would hold them."""
    ended = [end for one in given if isinstance(one, AttemptsEnded) for end in one.ends]
    if all(len(end.result.output) <= SMALL_BYTES for end in ended):
        return given
    return tuple(
        [AttemptsEnded(tuple(map(_small, one.ends))) if isinstance(one, AttemptsEnded) else one for one in given]
    )


def _small(end: Ended) -> Ended:
    return replace(end, result=replace(end.result, output=EMPTY))
