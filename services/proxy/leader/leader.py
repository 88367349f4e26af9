"""The leader: the dispatcher's state machine connected to streams. One replica at a time, fenced by its epoch.

It reads the journal and all messages of nodes and the planner in one blocking read, passes them to the pure dispatcher,
and writes the resulting commands. Its memory can be lost at any time: journal, store, outcomes and inventories rebuild
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import msgspec

from services.proxy.leader.answerings import to_answering
from services.proxy.leader.arrivals import Arrivals, names_of
from services.proxy.leader.dispatching import Given, GuardedDispatcher, Suspects
from services.proxy.leader.granted_leases import JOINED, SEEN, GrantedLeases
from services.proxy.leader.grantings import granting_of
from services.proxy.leader.interpreter import Interpreter
from services.proxy.leader.local_actions import LocalActions
from services.proxy.leader.local_leases import LocalLeases
from services.proxy.leader.messages import to_message, to_request_stimulus, to_stimuli
from services.proxy.leader.nodes import NodeRegistry
from services.proxy.leader.recent_calls import RecentCalls
from services.proxy.leader.recording import DispatchRecorder
from services.proxy.leader.requests import Unschedulable, to_end, to_parking, to_request
from services.proxy.leader.requests_under_way import RequestsUnderWay
from services.proxy.leader.unanswered import Unanswered
from services.proxy.leader.wakeup import Wakeup
from services.proxy.leader.writes import Discard, Forget, HoldsChanged
from services.proxy.records.answering import reports
from services.proxy.records.lease_records import is_lease
from shared.bus.connection import ValkeyClock
from shared.bus.functions import Advancing, Granting
from shared.bus.tail import Entry, Tail
from shared.messages.actions import ACTIONS, ActionSubmitted, Request, ResumeActionRequested, UnreadableEntry
from shared.messages.grants import Grant as GrantMessage
from shared.messages.nodes import NODES, Bye, Hello
from shared.messages.outcomes import OUTCOMES, EnvironmentEnded, Finished, InventoryTaken
from shared.messages.targets import TargetSet
from shared.policy.dispatch import stimuli
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.model.formulation import (
    Advance,
    AnswerAction,
    AskInventory,
    ChangeHolds,
    CloseEnvironment,
    Command,
    ForgetTrajectory,
    Grant,
    Park,
    PullImage,
    Resume,
    Revoke,
    SetShare,
)
from shared.policy.model.reports import Ended
from shared.runtime import log
from shared.runtime.units import Epoch

_log = log.get(__name__)
_json = msgspec.json.Encoder()


class Leader:
    """One term of leadership."""

    def __init__(
        self,
        epoch: Epoch,
        dispatcher: Dispatcher,
        interpreter: Interpreter,
        clock: ValkeyClock,
        keep_s: Callable[[ActionSubmitted], int],
        recorder: DispatchRecorder | RecentCalls | None = None,
        suspects: Suspects | None = None,
    ) -> None:
        self.epoch = epoch
        self.dispatcher = dispatcher
        self._interpreter = interpreter
        self._clock = clock
        self._keep_s = keep_s
        self.suspects = suspects or Suspects({})
        self._guarded = GuardedDispatcher(dispatcher, recorder, self.suspects, interpreter.depose)
        self.nodes = NodeRegistry()
        self.reasons: dict[str, str] = {}
        """Pool -> reason of its target."""
        self.unanswered: dict[str, Unanswered] = {}
        self._requests = RequestsUnderWay(interpreter, self.unanswered)
        self.leases = GrantedLeases(epoch, dispatcher, interpreter, clock)
        self.local_leases = LocalLeases(self, interpreter, clock)
        self.local_actions = LocalActions(self, interpreter, clock)
        interpreter.lease_calls, interpreter.action_calls = self.local_leases, self.local_actions
        self.wakeup = Wakeup(clock, interpreter.flushing)
        self._parkings = 0  # serial of the newest message that parks or resumes
        self._ticked = 0.0
        self.last_read = 0.0
        self.behind = False
        """Entries that were read wait to be handled."""

    # ---- stimuli -----------------------------------------------------------------------------------------------

    async def run(self, tail: Tail) -> None:
        """Lead until the tail is stopped or another leader has taken over."""
        self.last_read = self._clock.unix()
        arrivals = Arrivals(self._requests.owner, self.dispatcher.has_node)
        async for entries in tail.batches(blocks=lambda: not (arrivals or self.dispatcher.unfinished)):
            if self._interpreter.deposed:
                return
            self._ignore_silence()
            arrivals.put(entries, drained=tail.is_drained(OUTCOMES))
            self.take(arrivals.take())
            self.behind = bool(arrivals)
            if self.dispatcher.unfinished and not await self._interpreter.lags():
                self.go_on()

    def go_on(self) -> None:
        """Begin another turn with what the last one has left of cancellations and deadlines."""
        self._handle(self._clock.unix(), stimuli.TurnStarted())

    def take(self, entries: list[Entry[Any]], *, ticks: bool = True) -> None:
        """Handle the entries of one read, runs of one kind together. `ticks`: silence may be judged by the time."""
        now = self._clock.unix()
        submitted: list[Entry[ActionSubmitted]] = []
        finished: list[Entry[Finished]] = []
        for entry in entries:
            match entry.message:
                case _ if entry.topic == ACTIONS.name and self.local_actions.keeps(entry):
                    pass
                case ActionSubmitted():
                    submitted.append(entry)
                case Finished():
                    finished.append(entry)
                case UnreadableEntry():
                    self._refuse(entry)
                case asked if isinstance(asked, Request):
                    self.submit(now, submitted)
                    submitted = []
                    if isinstance(asked, ResumeActionRequested) and asked.action in self.unanswered:
                        self.unanswered[asked.action].resume = entry.id
                    self._requests.begin(entry)
                    self.leases.cancelled(asked, self.unanswered)
                    self._handle(now, to_request_stimulus(asked))
                case InventoryTaken() | EnvironmentEnded() | Hello() | Bye():
                    self._finish(now, finished)
                    finished = []
                    self._handle_other(now, entry)
                case _:
                    self._handle_other(now, entry)
        self.submit(now, submitted)
        self._finish(now, finished)
        if ticks and now - self._ticked >= 0.2:
            self.tick(now)

    def tick(self, now: float) -> None:
        """Handle what is due by time."""
        self._ticked = now
        self._handle(now, *((SEEN,) if self.leases.present else ()), stimuli.TickPassed())

    def serve_leases(self) -> None:
        """Let the node of leases join, after the grants of a former leader are restored."""
        self._handle(self._clock.unix(), JOINED)

    def submit(self, now: float, entries: list[Entry[ActionSubmitted]], local: Given | None = None) -> None:
        """Submit new actions. `local`: stimuli before them, if they are calls of this replica, not journaled yet."""
        requests = []
        for entry in entries:
            action, journaled = entry.message.action, entry.id if local is None else ""
            if action in self.unanswered:
                continue
            self.unanswered[action] = Unanswered(journaled, entry.at, entry.message, entry.index)
            try:
                request, wrong = to_request(entry), self.suspects.why_refused(action)
            except Unschedulable as error:
                wrong = str(error)
            if wrong:
                self._answer(AnswerAction(action, "refused", wrong, ()))
            else:
                requests.append(request)
        for part in self.suspects.parts(requests, attrgetter("id")):
            self._handle(now, *(local or ()), stimuli.RequestsSubmitted(part))
            local = ()
        if local:
            self._handle(now, *local)

    def _refuse(self, entry: Entry[UnreadableEntry]) -> None:
        """Answer an unreadable entry, masked. Otherwise it would stay in the journal and its batch would never end."""
        action = entry.message.action
        if not action:
            _log.error("entry_discarded", entry=entry.id, error=entry.message.error)
            self._interpreter.put(Discard(entry.id))
        elif action not in self.unanswered:
            self.unanswered[action] = Unanswered(entry.id, entry.at, entry.message.submission(), entry.index)
            why = f"this version of treadle cannot read the request ({entry.message.error}); submit it again"
            self._answer(AnswerAction(action, "refused", why, ()))

    def _finish(self, now: float, entries: Iterable[Entry[Finished]]) -> None:
        """Pass outcomes to the dispatcher together, but never two of one action: an answer reports its own outcome."""
        ends: dict[str, Ended] = {}
        for entry in entries:
            outcome = entry.message
            if outcome.action in ends:
                self._end(now, ends)
                ends = {}
            kept = self.unanswered.get(outcome.action)  # None: answered already, but this outcome frees its units
            if kept is not None and outcome.result.status in ("ok", "timeout", "refused"):
                kept.result, kept.outcome = outcome.result, entry.id
            ends[outcome.action] = to_end(outcome)
        self._end(now, ends)

    def _end(self, now: float, ends: dict[str, Ended]) -> None:
        for part in self.suspects.parts(ends.values(), attrgetter("action")):
            self._handle(now, stimuli.AttemptsEnded(part))

    def _handle_other(self, now: float, entry: Entry[Any]) -> None:
        message = entry.message
        if isinstance(message, InventoryTaken) and message.epoch != self.epoch:
            return  # requested by a former leader
        if isinstance(message, TargetSet):
            self.reasons[message.pool] = message.reason
        if entry.topic == NODES.name:
            self._handle(now, *self.nodes.stimuli(now, entry, self.dispatcher))
        for stimulus in to_stimuli(now, entry):
            self._handle(now, stimulus)

    def handle(self, *given: stimuli.Stimulus) -> None:
        """Pass state that was read from the store to the dispatcher, or a decision about a local call."""
        self._handle(self._clock.unix(), *given)

    def planned(self, planned: bool) -> None:
        """Apply the state of the planner's lease: whether a planner is alive."""
        if planned != self.dispatcher.planned:
            event, rule = ("planner_present", "targets") if planned else ("planner_absent", "zero queue")
            _log.warning(event, rule=rule)
        self._handle(self._clock.unix(), stimuli.PlannerChecked(planned))

    def _ignore_silence(self) -> None:
        """Ignore silence while Valkey was away: no node could send anything then."""
        now = self._clock.unix()
        if now - self.last_read > 3.0:
            _log.warning("silence_ignored", seconds=round(now - self.last_read, 1))
            self._handle(now, stimuli.SilenceIgnored())
        self.last_read = now

    # ---- commands ----------------------------------------------------------------------------------------------

    def _handle(self, now: float, *given: stimuli.Stimulus) -> None:
        """Pass stimuli to the dispatcher and execute the commands that follow."""
        self._do(self._guarded.handle(now, given))
        self._requests.discard_handled(self.dispatcher)
        self.wakeup.at(self.dispatcher.next_wake_s)

    def _do(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if self.leases.concerns(command):
                self.leases.do(command, self.unanswered, self.local_leases.undecided)
            else:
                self._execute(command)

    def _execute(self, command: Command) -> None:
        match command:
            case Grant():
                self._grant(command)
            case AnswerAction():
                self._answer(command)
            case Advance():
                self._advance(command)
            case AskInventory():
                self._ask_inventory(command)
            case Park() | Resume():
                self._park_or_resume(command)
            case Revoke(action=action):
                self._send(command.node, to_message(self.epoch, command), *self._requests.owner(action))
            case CloseEnvironment(trajectory=trajectory):
                self._send(command.node, to_message(self.epoch, command), names=(trajectory,))
            case SetShare() | PullImage():
                self._send(command.node, to_message(self.epoch, command))
            case ForgetTrajectory():
                name = command.trajectory
                self._interpreter.put(Forget(name, command.ended, command.reason), names=(name,))
            case ChangeHolds():
                self._interpreter.put(HoldsChanged(command.changes))

    def _grant(self, grant: Grant) -> None:
        topic, submitted = self.nodes.topic(grant.node), self.unanswered[grant.action].submitted
        granting = None if topic is None else granting_of(topic, self.epoch, grant, submitted)
        write = self.local_actions.write_of(grant, granting)
        if write is not None:
            self._interpreter.put(write, submitted.tenant, names_of(submitted))

    def _park_or_resume(self, command: Park | Resume) -> None:
        topic, kept = self.nodes.topic(command.node), self.unanswered.get(command.action)
        if topic is not None and kept is not None:
            self._parkings += 1
            payload = topic.encode(to_parking(self.epoch, self._parkings, command))
            resumes = kept.resume if isinstance(command, Resume) else ""
            granting = Granting(topic.name, payload, command.action, resumes=resumes)
            self._interpreter.put(granting, kept.submitted.tenant, names_of(kept.submitted))

    def _advance(self, advance: Advance) -> None:
        kept = self.unanswered[advance.action]
        acts = _json.encode(reports(advance.acts))
        advancing = Advancing(advance.action, advance.stage, acts, kept.outcome, advance.settled)
        self._interpreter.put(advancing, kept.submitted.tenant, names_of(kept.submitted))
        kept.outcome = ""

    def _send(self, node: str, message: GrantMessage, tenant: str = "", names: tuple[str, ...] = ()) -> None:
        if (topic := self.nodes.topic(node)) is not None:
            self._interpreter.put(Granting(topic.name, topic.encode(message)), tenant, names)

    def _ask_inventory(self, command: AskInventory) -> None:
        """Request an inventory after all earlier grants, which it must contain."""
        if (topic := self.nodes.topic(command.node)) is not None:
            self._interpreter.put_after_all(Granting(topic.name, topic.encode(to_message(self.epoch, command))))

    def _answer(self, answer: AnswerAction) -> None:
        kept = self.unanswered.pop(answer.action)
        if is_lease(kept.submitted):
            self.local_leases.put_answer(kept, answer, self.leases.answer(kept.submitted, answer))
        elif kept.entry or not self.local_actions.keeps_answer(kept, answer):
            self.put_answer(kept, answer)

    def put_answer(self, kept: Unanswered, answer: AnswerAction) -> None:
        """Put the write of an answer of a journaled action."""
        submitted = kept.submitted
        answering = to_answering(kept, answer, self._keep_s(submitted), self._clock.unix())
        self._interpreter.put(answering, submitted.tenant, self._requests.names_of(submitted))
