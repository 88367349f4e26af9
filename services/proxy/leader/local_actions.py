"""Actions of the leader's own callers: granted before they are journaled, so that one write does both.

An action that comes through the journal is written, read by the leader, decided and granted with another write. Here
the dispatcher decides when the call arrives. Only what may start at once is decided here: an action outside batches and
trajectories, without quotas, whose pool has nothing queued. All else goes through the journal. The records in the store
are the same afterwards.

Laws (tests/services/proxy/leader/test_local_actions.py):
  - a node hears of an action only if the journal has accepted it in the same write;
  - an action that is not granted at once, or that the journal does not accept, is withdrawn from the dispatcher, as if
    it had never come;
  - an entry that was journaled under the same id by another way is handled after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from services.proxy.leader.grantings import mark_of
from services.proxy.leader.interpreter import Interpreter
from services.proxy.leader.unanswered import Unanswered
from services.proxy.leader.writes import Write
from services.proxy.records.intake import submission_of
from shared.bus.connection import ValkeyClock
from shared.bus.functions import Granting, Receipt, Submission
from shared.bus.granted_submissions import GrantedSubmission
from shared.bus.tail import Entry
from shared.messages.actions import ACTIONS, ActionSubmitted
from shared.policy.dispatch.stimuli import ActionCancelled, AttemptsEnded
from shared.policy.model.formulation import AnswerAction, Grant
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.runtime.errors import Overloaded

if TYPE_CHECKING:
    from services.proxy.leader.leader import Leader

DECIDED_AT_ONCE: Final = 64
"""Calls that are decided together: about 5 ms."""
WITHDRAWN: Final = "the journal decides about it"
_FIRST_SERIAL: Final = 1 << 33
"""Second part of the arrivals' ids: they come after entries of the journal, and leases, in the same millisecond."""
_NEVER_BEGUN: Final = AttemptResult("cancelled", environment_exists=False)


class _Call(NamedTuple):
    """A call that is not decided."""

    submitted: ActionSubmitted
    receipt: asyncio.Future[Receipt | None]


@dataclass(slots=True)
class _Submitting:
    """An action that the dispatcher knows and the journal may not know."""

    receipt: asyncio.Future[Receipt | None]
    submission: Submission
    written: bool = False
    """Its write was put."""
    grant: Grant | None = None
    """Its newest grant."""
    answer: tuple[Unanswered, AnswerAction] | None = None
    """Its answer, which must not be written before the journal has accepted it."""
    other: Entry[ActionSubmitted] | None = None
    """Entry of the journal with the same id, which came by another way."""


class LocalActions:
    """Calls of one replica that submit actions, in the term that it leads."""

    def __init__(self, leader: Leader, interpreter: Interpreter, clock: ValkeyClock) -> None:
        self._leader = leader
        self._interpreter = interpreter
        self._clock = clock
        self._calls: list[_Call] = []
        self._submitting: dict[str, _Submitting] = {}
        self.withdrawing = ""
        """Action that is being removed from the dispatcher: nothing is written about it."""
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
        for entry in entries:
            one = self._submitting.get(entry.message.action)
            if one is not None and not one.written:
                self._end(entry.message.action, one, None)

    def _entry(self, now: float, call: _Call) -> Entry[ActionSubmitted] | None:
        """Return the action as if the journal had it; None if it is left to the journal."""
        submitted, receipt = call
        if receipt.done():
            return None
        if submitted.action in self._leader.unanswered or submitted.action in self._submitting:
            _resolve(receipt, None)
            return None
        self._serial += 1
        self._submitting[submitted.action] = _Submitting(receipt, submission_of(submitted))
        return Entry(ACTIONS.name, f"{round(1000 * now)}-{self._serial}", submitted, -1)

    def write_of(self, grant: Grant, granting: Granting | None) -> Write | None:
        """Return the write of a grant; the first one of an action here journals it too. None: no stream is known."""
        one = self._submitting.get(grant.action)
        if one is None:
            return granting
        one.grant = grant
        if one.written or granting is None:
            return granting
        one.written = True
        return GrantedSubmission(one.submission, granting)

    def keeps_back(self, kept: Unanswered, answer: AnswerAction) -> bool:
        """Return whether an answer must not be written now: of an action that is withdrawn, or not journaled."""
        action = answer.action
        if action == self.withdrawing:
            return True
        one = self._submitting.get(action)
        if one is None:
            return False
        if not one.written:  # refused by a memory that may be of a deposed leader
            del self._submitting[action]
            _resolve(one.receipt, None)
        else:
            one.answer = kept, answer
        return True

    def came_by_journal(self, entry: Entry[ActionSubmitted]) -> None:
        """Note an entry of an action that the leader knows already: it counts if the action is withdrawn."""
        one = self._submitting.get(entry.message.action)
        if one is not None:
            one.other = entry

    # ---- results of writes -------------------------------------------------------------------------------------

    def journaled(self, submissions: Sequence[GrantedSubmission], receipts: Sequence[Receipt]) -> None:
        """Note what the journal says. An action that it does not accept is withdrawn."""
        for (submission, granting), receipt in zip(submissions, receipts, strict=True):
            one = self._submitting.get(submission.action)
            if one is None:
                continue
            if receipt.code != "accepted":
                self._reject(granting, one, receipt)
                continue
            del self._submitting[submission.action]
            kept = self._leader.unanswered.get(submission.action) if one.answer is None else one.answer[0]
            if kept is not None:
                kept.entry = receipt.entry
            if one.answer is not None:
                self._leader.put_answer(*one.answer)
            _resolve(one.receipt, receipt)

    def rejected(self, submissions: Sequence[GrantedSubmission], error: Overloaded) -> None:
        """Withdraw actions that were not journaled."""
        for submission, granting in submissions:
            one = self._submitting.get(submission.action)
            if one is not None:
                if not one.receipt.done():
                    one.receipt.set_exception(error)
                self._reject(granting, one, None)

    def _reject(self, first: Granting, one: _Submitting, receipt: Receipt | None) -> None:
        assert one.grant is not None, "it was granted"
        mark = mark_of(one.grant)
        if mark != first.mark:  # it was granted again meanwhile, and this grant waits
            self._interpreter.void.add((first.action, mark))
        self._end(first.action, one, receipt)

    def _end(self, action: str, one: _Submitting, receipt: Receipt | None) -> None:
        """Remove an action from the dispatcher, as if it had never come; its caller gets the receipt."""
        del self._submitting[action]
        if action in self._leader.unanswered:
            self.withdrawing = action
            self._leader.handle(ActionCancelled(action, WITHDRAWN))
            if action in self._leader.unanswered and (grant := one.grant) is not None:
                end = Ended(action, grant.node, grant.attempt, grant.stage, _NEVER_BEGUN, units=grant.units)
                self._leader.handle(AttemptsEnded((end,)))
            self.withdrawing = ""
        _resolve(one.receipt, receipt)
        if one.other is not None:
            self._leader.submit(self._clock.unix(), [one.other])


def _resolve(receipt: asyncio.Future[Receipt | None], result: Receipt | None) -> None:
    if not receipt.done():
        receipt.set_result(result)
