"""Leases of the leader's own callers: decided before they are journaled, and ended without a message.

A lease that came through another replica is journaled, read, granted, released, read and answered: four writes, and two
reads of the leader. Here the dispatcher decides when the call arrives. One write journals and grants a lease that need
not wait, and another one ends it and answers its action. The records in the store are the same afterwards.

Laws (tests/services/proxy/leader/test_local_leases.py, tests/e2e/test_leases.py):
  - a caller has a lease only if the store has journaled and granted it;
  - a call that cannot be decided here (another leader, a refusal, an unknown fence) takes the way of other replicas;
  - what the store rejects leaves nothing in the dispatcher;
  - a release of a lease that may have expired is left to the store, which knows its renewals. If it has expired, the
    release changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from services.proxy.leader.answerings import lease_answering
from services.proxy.leader.interpreter import Interpreter
from services.proxy.leader.unanswered import Unanswered
from services.proxy.leader.writes import HoldsChanged
from services.proxy.records.intake import submission_of
from shared.bus.connection import ValkeyClock
from shared.bus.functions import Submission
from shared.bus.held_leases import Acquired, LeaseAcquisition, LeaseCode, LeaseRelease, encoded_amounts
from shared.bus.tail import Entry, Tail
from shared.messages import leases
from shared.messages.actions import ACTIONS, ActionSubmitted
from shared.messages.leases import GONE, GrantedLease
from shared.policy.dispatch.stimuli import ActionCancelled, AttemptsEnded
from shared.policy.model.formulation import AnswerAction
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.runtime.errors import Overloaded
from shared.runtime.units import Seconds

if TYPE_CHECKING:
    from services.proxy.leader.leader import Leader

DECIDED_AT_ONCE: Final = 256
"""Calls of one kind that are decided together: about 10 ms."""
UNREAD_S: Final[Seconds] = 0.05
"""Pause until the next try to decide while the leader cannot read."""
REJECTED: Final = "the journal has rejected it"
_UNITS: Final = {leases.RESOURCE: 1}
_MANY: Final = 4096
"""Undecided calls among which those of callers that have gone are removed."""
_FIRST_SERIAL: Final = 1 << 32
"""Second part of the arrivals' ids: they come after entries of the journal in the same millisecond."""

Result = TypeVar("Result")


class _Acquire(NamedTuple):
    """A call that is not decided."""

    submitted: ActionSubmitted
    journaled: asyncio.Future[bool]


class _Release(NamedTuple):
    """A call that is not decided, or the one behind the answer of its lease."""

    lease: str
    fence: int
    used: Mapping[str, float]
    ended: asyncio.Future[LeaseCode | None]


class LocalLeases:
    """Calls of one replica about leases, in the term that it leads.

    Calls that arrive during a flush of the interpreter are decided together before the next one.
    """

    def __init__(self, leader: Leader, interpreter: Interpreter, clock: ValkeyClock) -> None:
        self._leader = leader
        self._interpreter = interpreter
        self._clock = clock
        self._acquires: list[_Acquire] = []
        self._releases: list[_Release] = []
        self.undecided: dict[str, Submission] = {}
        """Leases about which the dispatcher is deciding."""
        self._journaling: dict[str, asyncio.Future[bool]] = {}
        """Leases whose first write is not done."""
        self._late: dict[str, tuple[Unanswered, AnswerAction, bytes]] = {}
        """Answers of those that wait meanwhile."""
        self._rejecting = ""
        """Lease that is being removed from the dispatcher."""
        self._ending: dict[str, _Release] = {}
        """Leases whose release is decided and not written."""
        self._repeats: dict[str, list[asyncio.Future[LeaseCode | None]]] = {}
        """Later releases of these leases, for the store, after the write: before it they would end the lease."""
        self._serial = _FIRST_SERIAL
        self.tail: Tail | None = None
        """What the leader reads. While it cannot be read, limits may have changed, and nothing is decided."""
        self._next_try: asyncio.TimerHandle | None = None

    # ---- calls -------------------------------------------------------------------------------------------------

    def acquire(self, submitted: ActionSubmitted) -> asyncio.Future[bool]:
        """See `LeaseDecider.acquire`."""
        journaled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if len(self._acquires) >= _MANY:  # Valkey is away: many callers have given up
            self._acquires = [call for call in self._acquires if not call.journaled.done()]
        self._acquires.append(_Acquire(submitted, journaled))
        self._interpreter.wake()
        return journaled

    def release(self, lease: str, fence: int, used: Mapping[str, float]) -> asyncio.Future[LeaseCode | None] | None:
        """See `LeaseDecider.release`."""
        if lease in self._ending:
            return self._repeated(lease)
        kept = self._holder(lease, fence)
        if kept is None or not used.keys() <= kept.submitted.stages[0].quotas.keys():
            return None
        ended: asyncio.Future[LeaseCode | None] = asyncio.get_running_loop().create_future()
        if len(self._releases) >= _MANY:
            self._releases = [call for call in self._releases if not call.ended.done()]
        self._releases.append(_Release(lease, fence, used, ended))
        self._interpreter.wake()
        return ended

    def _repeated(
        self, lease: str, ended: asyncio.Future[LeaseCode | None] | None = None
    ) -> asyncio.Future[LeaseCode | None]:
        ended = asyncio.get_running_loop().create_future() if ended is None else ended
        self._repeats.setdefault(lease, []).append(ended)
        return ended

    def close(self) -> list[str]:
        """End this term: callers go on without it. Returns leases whose callers have gone, and which may be written."""
        gone = [action for action, journaled in self._journaling.items() if journaled.done()]
        for journaled in (*(call.journaled for call in self._acquires), *self._journaling.values()):
            _resolve(journaled, False)
        for call in self._releases:
            _resolve(call.ended, None)
        for lease in list(self._ending):
            self._end_call(lease, None)
        return gone

    # ---- decisions ---------------------------------------------------------------------------------------------

    def decide(self) -> None:
        """Decide about the calls that have arrived, in one round, and put their writes."""
        if self.tail is not None and self.tail.away:
            if self._next_try is None:  # one timer, however many calls come
                self._next_try = asyncio.get_running_loop().call_later(UNREAD_S, self._try_again)
            return
        releases, self._releases = self._releases[:DECIDED_AT_ONCE], self._releases[DECIDED_AT_ONCE:]
        acquires, self._acquires = self._acquires[:DECIDED_AT_ONCE], self._acquires[DECIDED_AT_ONCE:]
        if releases or acquires:
            now = self._clock.unix()
            self._decide(now, self._ends(now, releases), self._entries(now, acquires))
        if self._releases or self._acquires:
            self._interpreter.wake()

    def _try_again(self) -> None:
        self._next_try = None
        self._interpreter.wake()

    def _decide(self, now: Seconds, ends: list[Ended], entries: list[Entry[ActionSubmitted]]) -> None:
        ended = (AttemptsEnded(tuple(ends)),) if ends else ()
        if ended and self._leader.suspects:  # alone, so that a failure with a suspect names no other action
            self._leader.handle(*ended)
            ended = ()
        self._leader.submit(now, entries, local=ended)
        for end in ends:
            if end.action in self._leader.unanswered:  # the dispatcher does not know this attempt
                self._end_call(end.action, None)
        for action, submission in self.undecided.items():  # they wait
            self._interpreter.put(LeaseAcquisition(submission, None), submission.tenant, (action,))
        self.undecided.clear()

    def _ends(self, now: Seconds, calls: list[_Release]) -> list[Ended]:
        """Return the ends of the leases that are released. The way of other replicas is left to the others."""
        ends = []
        for call in calls:
            kept = self._holder(call.lease, call.fence)
            if call.ended.done():
                continue
            if call.lease in self._ending:
                self._repeated(call.lease, call.ended)
                continue
            if kept is None or kept.held is None or kept.held.expires_s <= now:
                _resolve(call.ended, None)
                continue
            self._ending[call.lease] = call
            result = AttemptResult("ok", quotas_used=dict(call.used))
            ends.append(_end(call.lease, kept.held.attempt, result, now - kept.held.granted_s))
        return ends

    def _entries(self, now: Seconds, calls: list[_Acquire]) -> list[Entry[ActionSubmitted]]:
        """Return the leases that are acquired, as if the journal had them."""
        entries = []
        for submitted, journaled in calls:
            if not journaled.done():
                self._serial += 1
                self._journaling[submitted.action] = journaled
                self.undecided[submitted.action] = submission_of(submitted)
                entries.append(Entry(ACTIONS.name, f"{round(1000 * now)}-{self._serial}", submitted, -1))
        return entries

    def _holder(self, lease: str, fence: int) -> Unanswered | None:
        """Return the record of a lease that this term has granted with this fence, and does not end yet."""
        kept = self._leader.unanswered.get(lease)
        if kept is None or not kept.entry or kept.held is None or kept.held.fence != fence or lease in self._ending:
            return None
        return kept

    # ---- answers -----------------------------------------------------------------------------------------------

    def put_answer(self, kept: Unanswered, answer: AnswerAction, body: bytes) -> None:
        """Put the write of any lease's answer: of one that its caller releases here, with its end."""
        if not kept.entry and self._keeps_back(kept, answer, body):
            return
        answering, ending = lease_answering(kept, answer, body), self._ending.get(answer.action)
        write = answering if ending is None else LeaseRelease(answering, ending.fence, encoded_amounts(ending.used))
        self._interpreter.put(write, kept.submitted.tenant, (answer.action,))

    def _keeps_back(self, kept: Unanswered, answer: AnswerAction, body: bytes) -> bool:
        """Return whether an answer must not be written now, because its lease is not journaled."""
        action = answer.action
        if action == self._rejecting:
            if answer.settled:  # a later write may grant it and take its amounts: give them back after that
                self._interpreter.put(HoldsChanged(answer.settled), kept.submitted.tenant, (action,))
            return True
        if self.undecided.pop(action, None) is not None:  # refused by a memory that may be of a deposed leader
            _resolve(self._journaling.pop(action), False)
            return True
        if action in self._journaling:
            self._late[action] = kept, answer, body
            return True
        return False

    # ---- results of writes -------------------------------------------------------------------------------------

    def granted(self, granted: Sequence[GrantedLease]) -> None:
        """Note the fences of leases that were granted, and when they expire."""
        for lease in granted:
            self._leader.leases.expires_at(lease.expires_ms / 1000)
            kept = self._leader.unanswered.get(lease.action)
            if kept is not None and kept.held is not None:
                kept.held.fence, kept.held.expires_s = lease.fence, lease.expires_ms / 1000

    def acquired(self, acquisitions: Sequence[LeaseAcquisition], replies: Sequence[Acquired]) -> None:
        """Note that leases are journaled. One whose caller has gone is cancelled, and gives back all that it took."""
        gone: list[tuple[str, GrantedLease | None]] = []
        for acquisition, reply in zip(acquisitions, replies, strict=True):
            action = acquisition.submission.action
            journaled = self._journaling.pop(action, None)
            if (kept := self._leader.unanswered.get(action)) is not None:
                kept.entry = reply.entry
            if late := self._late.pop(action, None):
                late[0].entry = reply.entry
                self._interpreter.put(lease_answering(*late), acquisition.submission.tenant, (action,))
            if journaled is not None and not _resolve(journaled, True):
                gone.append((action, reply.granted))
        for action, granted in sorted(gone, key=lambda one: one[1] is not None):  # as `rejected`
            kept = self._leader.unanswered.get(action)
            self._leader.handle(ActionCancelled(action, GONE))
            if granted is not None:
                ended: asyncio.Future[LeaseCode | None] = asyncio.get_running_loop().create_future()
                self._ending[action] = _Release(action, granted.fence, {}, ended)
                self._end_unbegun(action, kept)

    def rejected(self, acquisitions: Sequence[LeaseAcquisition], error: Overloaded) -> None:
        """Remove leases that were not journaled from the dispatcher, as if they had never come. Those that wait go
        first, because each end grants what waits.
        """
        for acquisition in sorted(acquisitions, key=lambda one: one.grant is not None):
            self._rejecting = action = acquisition.submission.action
            kept = self._leader.unanswered.get(action)
            self._leader.handle(ActionCancelled(action, REJECTED))
            self._end_unbegun(action, kept)
            self._rejecting = ""
            self._late.pop(action, None)
            journaled = self._journaling.pop(action, None)
            if journaled is not None and not journaled.done():
                journaled.set_exception(error)

    def _end_unbegun(self, action: str, kept: Unanswered | None) -> None:
        """End a granted lease that was not used, after its cancellation."""
        if action in self._leader.unanswered and kept is not None and kept.held is not None:
            never_begun = AttemptResult("cancelled", environment_exists=False)
            self._leader.handle(AttemptsEnded((_end(action, kept.held.attempt, never_begun, 0.0),)))

    def released(self, releases: Sequence[LeaseRelease], codes: Sequence[LeaseCode]) -> None:
        """Note that leases have ended."""
        for release, code in zip(releases, codes, strict=True):
            self._end_call(release.answering.action, code)

    def _end_call(self, lease: str, code: LeaseCode | None) -> None:
        """Answer the release of a lease, and leave later ones to the store."""
        call = self._ending.pop(lease, None)
        if call is not None:
            _resolve(call.ended, code)
        for repeat in self._repeats.pop(lease, ()):
            _resolve(repeat, None)


def _end(lease: str, attempt: int, result: AttemptResult, held_s: Seconds) -> Ended:
    return Ended(lease, leases.NODE, attempt, 0, result, 0.0, max(0.0, held_s), _UNITS)


def _resolve(future: asyncio.Future[Result], result: Result) -> bool:
    if future.done():
        return False
    future.set_result(result)
    return True
