"""Actions of the leader's own callers: granted before they are journaled, so that one write does both.

An action that comes through the journal is written, read by the leader, decided and granted with another write. Here
the dispatcher decides when the call arrives. Only what may start at once is decided here: an action outside batches and
trajectories, without quotas, whose pool has nothing queued. All else goes through the journal. The records in the store
are the same afterwards.

Laws (tests/services/proxy/leader/test_local_actions.py):
  - no grant is sent of an action that the journal has not accepted;
  - an action that is not granted at once, or that the journal does not accept, is withdrawn from the dispatcher, as if
    it had never come (`ActionWithdrawn`);
  - what the journal has of the same id meanwhile (it came by another way, or was cancelled) is handled after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from services.proxy.leader.interpreter import Interpreter
from services.proxy.leader.unanswered import Unanswered
from services.proxy.leader.writes import Write
from services.proxy.records.intake import submission_of
from shared.bus.connection import ValkeyClock
from shared.bus.functions import Granting, Receipt
from shared.bus.granted_submissions import GrantedSubmission
from shared.bus.tail import Entry
from shared.messages.actions import ACTIONS, ActionSubmitted
from shared.policy.dispatch.local_stimuli import ActionWithdrawn
from shared.policy.dispatch.stimuli import ActionCancelled
from shared.policy.model.formulation import AnswerAction, Grant
from shared.runtime.errors import Overloaded

if TYPE_CHECKING:
    from services.proxy.leader.leader import Leader

DECIDED_AT_ONCE: Final = 64
"""Calls that are decided together: about 5 ms."""
GONE: Final = "its caller has gone"
_FIRST_SERIAL: Final = 1 << 33
"""Second part of the arrivals' ids: they come after entries of the journal, and leases, in the same millisecond."""


class _Call(NamedTuple):
    """A call that is not decided."""

    submitted: ActionSubmitted
    receipt: asyncio.Future[Receipt | None]


@dataclass(slots=True)
class _Submitting:
    """An action that the dispatcher knows and the journal may not know."""

    submitted: ActionSubmitted
    receipt: asyncio.Future[Receipt | None]
    first: str = ""
    """Mark of the grant that its write sends; empty: no write was put."""
    tried: bool = False
    """Its write may have been executed."""
    later: list[str] = field(default_factory=list)
    """Marks of its later grants. They wait for the result of the first write."""
    answer: tuple[Unanswered, AnswerAction] | None = None
    """Its answer, which must not be written before the journal has accepted it."""
    entries: list[Entry[Any]] = field(default_factory=list)
    """Entries of the journal about the same id."""


class LocalActions:
    """Calls of one replica that submit actions, in the term that it leads."""

    def __init__(self, leader: Leader, interpreter: Interpreter, clock: ValkeyClock) -> None:
        self._leader = leader
        self._interpreter = interpreter
        self._clock = clock
        self._calls: list[_Call] = []
        self._submitting: dict[str, _Submitting] = {}
        self._serial = _FIRST_SERIAL

    # ---- calls -------------------------------------------------------------------------------------------------

    def submit(self, submitted: ActionSubmitted) -> asyncio.Future[Receipt | None] | None:
        """See `ActionDecider.submit`."""
        if len(self._calls) >= DECIDED_AT_ONCE or not self._starts_at_once(submitted):
            return None
        receipt: asyncio.Future[Receipt | None] = asyncio.get_running_loop().create_future()
        self._calls.append(_Call(submitted, receipt))
        self._interpreter.wake()
        return receipt

    def _starts_at_once(self, submitted: ActionSubmitted) -> bool:
        """Return whether the dispatcher may grant it in the next round. What it does not grant is withdrawn."""
        if submitted.batch or submitted.trajectory or len(submitted.stages) == 0:
            return False
        first = submitted.stages[0]
        if any(stage.quotas for stage in submitted.stages):
            return False
        return not (self._leader.behind or self._leader.suspects or self._leader.dispatcher.queued_in(first.pool))

    def close(self) -> None:
        """End this term: callers submit to the journal, which knows what was written."""
        for receipt in (*(one.receipt for one in self._calls), *(one.receipt for one in self._submitting.values())):
            _resolve(receipt, None)
        self._calls.clear()
        self._submitting.clear()

    # ---- decisions ---------------------------------------------------------------------------------------------

    def decide(self) -> None:
        """Decide about the calls that have arrived, in one round, and put their writes."""
        calls, self._calls = self._calls, []
        if not calls:
            return
        now = self._clock.unix()
        entries = [entry for call in calls if (entry := self._entry(now, call)) is not None]
        self._leader.submit(now, entries, local=())
        known = (self._submitting.get(entry.message.action) for entry in entries)
        self._withdraw([(one, None) for one in known if one is not None and not one.first])

    def _entry(self, now: float, call: _Call) -> Entry[ActionSubmitted] | None:
        """Return the action as an entry of the journal; None if its caller must submit it there."""
        submitted, receipt = call
        if receipt.done():
            return None
        if submitted.action in self._leader.unanswered or submitted.action in self._submitting:
            _resolve(receipt, None)
            return None
        self._serial += 1
        self._submitting[submitted.action] = _Submitting(submitted, receipt)
        return Entry(ACTIONS.name, f"{round(1000 * now)}-{self._serial}", submitted, -1)

    def write_of(self, grant: Grant, granting: Granting | None) -> Write | None:
        """Return the write of a grant; the first one of an action here journals it too. None: no stream is known."""
        one = self._submitting.get(grant.action)
        if one is None or granting is None:
            return granting
        if one.first:
            one.later.append(granting.mark)
            return granting
        one.first = granting.mark
        return GrantedSubmission(submission_of(one.submitted), granting)

    def keeps_answer(self, kept: Unanswered, answer: AnswerAction) -> bool:
        """Return whether an answer must not be written now, because its action is not journaled."""
        one = self._submitting.get(answer.action)
        if one is None:
            return False
        one.answer = kept, answer  # without a write it was refused, perhaps by the memory of a deposed leader
        return True

    def keeps(self, entry: Entry[Any]) -> bool:
        """Return whether an entry of the journal waits, because its action is being submitted here."""
        one = self._submitting.get(getattr(entry.message, "action", "")) if self._submitting else None
        if one is not None:
            one.entries.append(entry)
        return one is not None

    # ---- results of writes -------------------------------------------------------------------------------------

    def begin_write(self, submissions: Sequence[GrantedSubmission]) -> tuple[list[GrantedSubmission], bool]:
        """See `ActionCalls.begin_write`."""
        unwanted, again = [], False
        for submission in submissions:
            one = self._submitting.get(submission.submission.action)
            if one is not None and one.receipt.done() and not one.tried:
                unwanted.append((submission, one))
            elif one is not None:
                again, one.tried = again or one.tried, True
        self._withdraw([(one, None) for _, one in unwanted])
        return [submission for submission, _ in unwanted], again

    def journaled(self, submissions: Sequence[GrantedSubmission], receipts: Sequence[Receipt]) -> None:
        """Apply the journal's receipts. Actions that it has not accepted are withdrawn."""
        rejected: list[tuple[_Submitting, Receipt | None]] = []
        for (submission, _), receipt in zip(submissions, receipts, strict=True):
            one = self._submitting.get(submission.action)
            if one is not None and receipt.code == "accepted":
                self._accept(one, receipt)
            elif one is not None:
                rejected.append((one, receipt))
        self._withdraw(rejected)

    def rejected(self, submissions: Sequence[GrantedSubmission], error: Overloaded) -> None:
        """Withdraw actions that were not journaled."""
        known = [self._submitting.get(submission.action) for submission, _ in submissions]
        for one in known:
            if one is not None and not one.receipt.done():
                one.receipt.set_exception(error)
        self._withdraw([(one, None) for one in known if one is not None])

    def _accept(self, one: _Submitting, receipt: Receipt) -> None:
        action = one.submitted.action
        del self._submitting[action]
        kept = self._leader.unanswered.get(action) if one.answer is None else one.answer[0]
        if kept is not None:
            kept.entry = receipt.entry
        _resolve(one.receipt, receipt)
        if one.answer is not None:
            self._leader.put_answer(*one.answer)
        if one.receipt.cancelled() and one.submitted.held_by:  # its caller could not cancel it before
            self._leader.handle(ActionCancelled(action, GONE))
        if one.entries:
            self._leader.take(one.entries, ticks=False)

    def _withdraw(self, ended: Sequence[tuple[_Submitting, Receipt | None]]) -> None:
        """Withdraw actions together, so that no round between grants what one of them forbids another one. Their
        callers get the receipts.
        """
        withdrawn = []
        for one, receipt in ended:
            action = one.submitted.action
            del self._submitting[action]
            self._interpreter.void.update((action, mark) for mark in one.later)
            _resolve(one.receipt, receipt)
            if self._leader.unanswered.pop(action, None) is not None:
                withdrawn.append(ActionWithdrawn(action))
        if withdrawn:
            self._leader.handle(*reversed(withdrawn))  # effects of grants are undone in the reverse order
        for one, _ in ended:
            if one.entries:
                self._leader.take(one.entries, ticks=False)


def _resolve(receipt: asyncio.Future[Receipt | None], result: Receipt | None) -> None:
    if not receipt.done():
        receipt.set_result(result)
