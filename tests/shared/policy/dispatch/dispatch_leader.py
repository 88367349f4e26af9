"""The simulated leader: its reads, decisions and writes, and its loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.local_stimuli import ActionWithdrawn
from shared.policy.dispatch.stimuli import (
    ActionRestored,
    AttemptParked,
    EnvironmentEndReported,
    InventoryReported,
    PlacementRestored,
    PlannerChecked,
    PriorityChanged,
    ResumeRequested,
    Stimulus,
    TrajectoryRestored,
    TurnStarted,
)
from shared.policy.model.formulation import (
    Advance,
    AnswerAction,
    AskInventory,
    ChangeHolds,
    CloseEnvironment,
    Command,
    EnvironmentNeed,
    ForgetTrajectory,
    Grant,
    Request,
    Resume,
    Revoke,
    SetShare,
)
from shared.policy.model.reports import Ended
from shared.policy.resources.ledger import Node
from tests.shared.policy.dispatch.dispatch_hosts import EnvironmentEndReport, Inventory, ParkReport
from tests.shared.policy.dispatch.dispatch_records import MOST_ATTEMPTS, Records
from tests.shared.policy.strategies import ENVIRONMENTS, SPECS, joined, reported, submitted

NODE_LOST_S = 10.0


@dataclass(slots=True)
class LeaderRecords(Records):
    """Records with a leader that reads and writes them."""

    def take_over(self) -> None:
        """Replace the leader, without its unwritten commands; the new one rebuilds its state from the store."""
        self.epoch += 1
        self.writes, self.inventoried, self.shares = [], {}, {}
        self.journal |= {name: one for name, one in self.local.items() if name not in self.rejected}  # by its caller
        self.withdrawn |= self.local.keys() & self.rejected
        self.local.clear()
        config = DispatchConfig(max_attempts=MOST_ATTEMPTS, node_lost_s=NODE_LOST_S, most_ended=self.most_ended)
        self.leader = Dispatcher(config, SPECS)
        for restored in self.quotas.restored():
            self.leader.handle(self.now, restored)
        self.do(self.leader.handle(self.now, PlannerChecked(self.planned)))
        for trajectory, ended in self.over.items():
            self.leader.handle(self.now, TrajectoryRestored(trajectory, ended))
        for trajectory, (host, units) in self.placements.items():
            self.leader.handle(self.now, PlacementRestored(trajectory, host, units))
        self.do(self.leader.handle(self.now, submitted(*self.journal.values())))
        for trajectory, priority in self.priorities.items():
            self.leader.handle(self.now, PriorityChanged(trajectory, priority))
        self.go_on()
        for action_id in list(self.journal):
            if action_id in self.leader.registry.actions and (action_id in self.marks or action_id in self.steps):
                stage, acts = self.steps.get(action_id, (0, ()))
                attempt, host = self.marks.get(action_id, (0, ""))
                self.leader.handle(self.now, ActionRestored(action_id, stage, attempt, tuple(acts), host))
        for at, hello in self.hellos:
            if self.now - at < NODE_LOST_S:
                fresh = Node(hello.name, hello.incarnation, hello.node_class, hello.capacity, hello.kinds, hello.specs)
                fresh.prefetches = hello.prefetches
                self.do(self.leader.handle(self.now, joined(fresh)))
        self.read = 0
        self.lead_reads(len(self.outcomes))

    def go_on(self) -> None:
        """Turns of the leader until nothing is left of cancellations and deadlines."""
        while self.leader.unfinished:
            self.do(self.leader.handle(self.now, TurnStarted()))

    def _ending(self) -> list[EnvironmentNeed]:
        return [need for need in ENVIRONMENTS if self.leader.cancels(need.trajectory)]

    def lead_reads(self, most: int) -> None:
        """The leader continues to read: runs of outcomes together, as the service does, or all in one call."""
        entries = self.outcomes[self.read : self.read + most]
        self.read += len(entries)
        given = list(self._stimuli(entries))
        for stimuli in [given] if self.together else [[one] for one in given]:
            self.do(self.leader.handle(self.now, *stimuli))

    def _stimuli(self, entries: Iterable[Ended | Inventory | EnvironmentEndReport | ParkReport]) -> Iterator[Stimulus]:
        ends: list[Ended] = []
        for entry in entries:
            if isinstance(entry, Ended):
                ends.append(entry)
                continue
            yield reported(*ends)
            ends = []
            if isinstance(entry, ParkReport):
                yield ResumeRequested(entry.action) if entry.resuming else AttemptParked(entry.action, entry.attempt)
            elif isinstance(entry, EnvironmentEndReport):
                yield EnvironmentEndReported(entry.node, entry.incarnation, entry.trajectory, entry.ended, "so be it")
            elif entry.epoch == self.epoch:
                self.adopted += sum(one.parked for one in entry.held.values())
                self.inventoried.setdefault(entry.node, set()).add(entry.incarnation)
                yield InventoryReported(entry.node, entry.incarnation, entry.held, entry.environments)
        yield reported(*ends)

    def submit_locally(self, request: Request, *, accepted: bool) -> None:
        """Let the leader decide before the journal has an action. Without a grant, its caller submits it there."""
        self.requests[request.id] = self.local[request.id] = request
        if not accepted:
            self.rejected.add(request.id)
        self.do(self.leader.handle(self.now, submitted(request)))
        if not any(isinstance(command, Grant) and command.action == request.id for _, command in self.writes):
            self.withdraw(request.id)
            self.withdrawn.discard(request.id)
            self.journal[request.id] = request
            self.do(self.leader.handle(self.now, submitted(request)))

    def withdraw(self, *names: str) -> None:
        """Withdraw local actions: nothing of them is written."""
        self.withdrawn |= set(names)
        self.local = {name: one for name, one in self.local.items() if name not in names}
        self.writes = [
            (to, command)
            for to, command in self.writes
            if not (isinstance(command, Grant | AnswerAction) and command.action in names)
        ]
        self.do(self.leader.handle(self.now, *(ActionWithdrawn(name) for name in reversed(names))))

    def do(self, commands: Iterable[Command]) -> None:
        """Check the leader's commands and queue them for writing."""
        for command in commands:
            assert getattr(command, "action", "") not in self.withdrawn, f"it is withdrawn: {command}"
            if isinstance(command, Grant | Resume):
                request = self.requests[command.action]
                cancelled = self.leader.cancels(request.batch) or request.need in self._ending()
                assert not cancelled, f"it is being cancelled: {command}"
            if isinstance(command, Grant):
                node = self.leader.cluster.nodes.present[command.node]
                assert node.incarnation in self.inventoried.get(node.name, ()), (
                    f"{node.name} has not sent its inventory"
                )
                recalls = self.leader.registry.actions[command.action].recalls
                self.recalled += recalls > 0
                assert 1 <= command.attempt <= MOST_ATTEMPTS + recalls, f"attempts are bounded: {command}"
                self._fits_its_work(command)
            if isinstance(command, SetShare):
                node = self.hosts[command.node].hello()
                assert 0 <= command.units <= node.capacity[command.resource], f"not to be owned: {command}"
                self.shares[node.incarnation, command.resource] = command.units
            if isinstance(command, Advance):
                self.carried[command.action, command.stage] = command.acts
            if isinstance(command, AnswerAction):
                self._adds_up(command)
            if isinstance(command, AnswerAction | Advance):
                self.quotas.decided(command.settled)
            if isinstance(command, ChangeHolds):
                self.quotas.decided(command.changes)
            to = ""
            if not isinstance(command, AnswerAction | Advance | ChangeHolds | ForgetTrajectory):
                to = self.address(command.node)
            self.writes.append((to, command))

    def address(self, name: str) -> str:
        """Incarnation of this name at the leader; if it has none, the newest hello's."""
        node = self.leader.cluster.nodes.present.get(name)
        return node.incarnation if node is not None else self.hosts[name].incarnation

    def write(self, most: int) -> None:
        """Write the oldest commands, one after the other."""
        rejected: dict[str, None] = {}
        for _ in range(min(most, len(self.writes))):
            incarnation, command = self.writes.pop(0)
            action = command.action if isinstance(command, Grant | AnswerAction) else ""
            if action in self.local:
                if action in self.rejected:
                    rejected[action] = None
                    continue
                self.journal[action] = self.local.pop(action)
            match command:
                case AnswerAction():
                    self._answer(command)
                    self.quotas.change(command.settled)
                case ChangeHolds():
                    self.quotas.change(command.changes)
                case Advance():
                    self.quotas.change(command.settled)
                    self.steps[command.action] = (command.stage, self.carried[command.action, command.stage])
                    self.marks.pop(command.action, None)
                case Grant():
                    assert (command.action, command.stage, command.attempt) not in self.sent, f"sent twice: {command}"
                    self.sent.add((command.action, command.stage, command.attempt))
                    self.marks[command.action] = (command.attempt, command.node)
                    need = self.requests[command.action].need
                    if command.begins and need is not None:
                        self.placements[need.trajectory] = (command.node, dict(need.units))
                    self.quotas.grant(command)
                    self._send(incarnation, command)
                case ForgetTrajectory():
                    self.placements.pop(command.trajectory, None)
                    if command.ended != "unmade":
                        self.over.setdefault(command.trajectory, command.ended)
                case _:
                    self._send(incarnation, command)
        if rejected:
            self.withdraw(*rejected)

    def tear(self) -> None:
        """The leader dies during a flush: its answers are lost, though the messages of that flush have arrived."""
        writes, self.writes = self.writes, []
        for kinds in (
            ForgetTrajectory,
            Advance,
            ChangeHolds,
            (Grant, Revoke, AskInventory, SetShare, CloseEnvironment),
        ):
            self.writes = [one for one in writes if isinstance(one[1], kinds)]
            self.write(len(self.writes))
        self.take_over()

    def _send(self, incarnation: str, message: Command) -> None:
        for host in self.hosts.values():
            if host.incarnation == incarnation:
                host.inbox.append((self.epoch, message))

    def _answer(self, answer: AnswerAction) -> None:
        assert answer.action not in self.answers, f"answered twice: {self.answers[answer.action]}, {answer}"
        del self.journal[answer.action]
        self.marks.pop(answer.action, None)
        self.steps.pop(answer.action, None)
        self.answers[answer.action] = answer
        self.check_answer(answer)
