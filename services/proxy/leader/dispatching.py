"""Calls of the dispatcher by a leader: recorded, and guarded against work that fails every leader's term.

After an exception out of `Dispatcher.handle` its state is not defined. So the term ends, and the next leader reads the
same journal. Laws (tests/services/proxy/leader/test_dispatching.py, test_failed_terms.py):
  - the stimulus log with the failing call is written, and its event `dispatch_failed` names the file;
  - the actions that the failing call names are counted. The next leaders pass each of them to the dispatcher alone, so
    a later failure names only the one that causes it;
  - an action that `MOST_FAILED` terms have failed with is answered `refused`, masked: never with a verdict, and it ends
    no later term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from services.proxy.leader.recent_calls import RecentCalls
from services.proxy.leader.recording import DispatchRecorder
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import HoldRestored
from shared.policy.dispatch.stimuli import AttemptsEnded, RequestsSubmitted, Stimulus
from shared.policy.model.formulation import Command
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)

MOST_FAILED: Final = 3
"""Failed terms after which an action is refused. The first one may name many actions; the others name one."""

Item = TypeVar("Item")
Given = tuple[Stimulus, ...]
"""Stimuli of one moment."""


class DispatchFailed(Exception):
    """A call of the dispatcher has raised: the leader's term is over."""

    def __init__(self, suspects: tuple[str, ...]) -> None:
        super().__init__(f"a call of the dispatcher has failed; it named {len(suspects)} actions")
        self.suspects = suspects
        """Actions that the call named and that later terms can refuse. Empty: it named none, or one that is refused
        already.
        """


class Suspects:
    """Actions that were named by calls with which earlier terms have failed."""

    def __init__(self, failed: Mapping[str, int]) -> None:
        """`failed`: action -> failed terms."""
        self._failed = failed

    def __bool__(self) -> bool:
        """True if there are any."""
        return bool(self._failed)

    def why_refused(self, action: str) -> str:
        """Return why an action must not be passed to the dispatcher; empty if it may be."""
        failed = self._failed.get(action, 0)
        if failed < MOST_FAILED:
            return ""
        return f"the dispatcher has failed {failed} times while it handled this action; report it with the stimulus log"

    def parts(self, items: Iterable[Item], action: Callable[[Item], str]) -> Iterator[tuple[Item, ...]]:
        """Yield the items in their order, each suspect alone."""
        part: list[Item] = []
        if not self._failed:
            part.extend(items)
            items = ()
        for item in items:
            if action(item) in self._failed:
                if part:
                    yield tuple(part)
                    part = []
                yield (item,)
            else:
                part.append(item)
        if part:
            yield tuple(part)


class GuardedDispatcher:
    """The dispatcher of one term, as its leader calls it."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        recorder: DispatchRecorder | RecentCalls | None,
        suspects: Suspects,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """`failed`: called when the dispatcher has raised. No write may follow from its state then."""
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._suspects = suspects
        self._failed = failed
        self._over = False

    def handle(self, now: Seconds, given: Given) -> list[Command]:
        """Handle stimuli, and record them. Nothing follows after a failure: the term is over.

        Raises:
            DispatchFailed: the dispatcher has raised; the log was written.
        """
        if self._over:
            return []
        try:
            commands = self._dispatcher.handle(now, *given)
        except Exception as error:
            self._over = True
            self._failed()
            path = self._recorder.failed(now, given) if self._recorder is not None else None
            suspects = tuple(name for name in _named(given, error) if not self._suspects.why_refused(name))
            _log.exception(
                "dispatch_failed",
                stimuli=[type(one).__name__ for one in given],
                actions=list(suspects[:8]),
                stimulus_log=str(path) if path is not None else "",
            )
            raise DispatchFailed(suspects) from error
        if self._recorder is not None:
            self._recorder.record(now, given, commands)
        return commands


def _named(given: Iterable[Stimulus], error: Exception) -> tuple[str, ...]:
    """Return the actions that a failed call names, with the one that the scheduling round was serving."""
    found = {str(getattr(error, "action", "")): None}
    for one in given:
        match one:
            case RequestsSubmitted():
                found |= dict.fromkeys(request.id for request in one.requests)
            case AttemptsEnded():
                found |= dict.fromkeys(end.action for end in one.ends)
            case HoldRestored():
                found[one.hold.action] = None
            case _:
                found[getattr(one, "action", "")] = None
    found.pop("", None)
    return tuple(found)
