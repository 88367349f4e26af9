"""The world around a dispatcher, reduced to what can go wrong in it.

Hosts run what reaches them, lose messages with their lives, and report late; a store keeps marks and answers; leaders
die with what they had not written. It knows nothing of the bookkeeping of the dispatcher: it asserts what a bystander
sees to be wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.policy.backlog import survey, why_stuck
from shared.policy.dispatch import Dispatcher, Ended
from shared.policy.formulation import (
    Advance,
    Answer,
    AskInventory,
    CloseEnvironment,
    Command,
    ForgetTrajectory,
    Grant,
    Request,
    Revoke,
    SetShare,
    StageAct,
    TrajectoryEnd,
)
from shared.policy.ledger import Node
from shared.policy.standing import standings
from tests.policy.dispatch_hosts import Gone, Host, Inventory, Run

NODE_LOST_S = 10.0
MOST_ATTEMPTS = 3


@dataclass(slots=True)
class World:
    """Hosts, store and streams, and the leader of the moment."""

    hosts: dict[str, Host]
    now: float = 1000.0
    epoch: int = 0
    leader: Dispatcher = field(default_factory=Dispatcher)
    journal: dict[str, Request] = field(default_factory=dict)
    marks: dict[str, tuple[int, str]] = field(default_factory=dict)
    steps: dict[str, tuple[int, tuple[StageAct, ...]]] = field(default_factory=dict)
    carried: dict[tuple[str, int], tuple[StageAct, ...]] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    outcomes: list[Ended | Inventory | Gone] = field(default_factory=list)
    read: int = 0
    """How much of `outcomes` the leader has read."""
    writes: list[tuple[str, Command]] = field(default_factory=list)
    """What the leader has decided and not yet written, and the incarnation it goes to."""
    told: dict[str, set[str]] = field(default_factory=dict)
    """Node -> incarnations whose inventory this leader has taken."""
    shares: dict[tuple[str, str], int] = field(default_factory=dict)
    """What this leader last told each incarnation to own: (incarnation, resource) -> units."""
    sent: set[tuple[str, int, int]] = field(default_factory=set)
    """(action, stage, attempt) ever sent to a host."""
    executed: list[tuple[str, int]] = field(default_factory=list)
    """(action, stage) of every execution that was ever begun."""
    waited: int = 0
    """Grants that had to wait in a host's line."""
    recalled: int = 0
    """Grants of what had been taken back from a line."""
    planned: bool = True
    """A planner lives, as far as its lease says."""
    starved: int = 0
    """How often work waited for want of units while no planner lived, and owned all there are."""
    cancels: set[str] = field(default_factory=set)
    placements: dict[str, tuple[str, dict[str, int]]] = field(default_factory=dict)
    """Trajectory -> where the store says that it lives, and what it holds there."""
    over: dict[str, str] = field(default_factory=dict)
    """Trajectory -> how the store says that it ended."""
    began: set[str] = field(default_factory=set)
    """Trajectories for which an environment was begun that has not been told as unmade."""
    troubled: set[str] = field(default_factory=set)
    """Hosts that were ever away, and trajectories whose environment ever ended."""
    widened: int = 0
    """Grants of more than the fewest units."""
    hellos: list[tuple[float, Node]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for host in self.hosts.values():
            self.hellos.append((self.now, host.hello()))
        self.take_over()

    # ---- leaders -----------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """The leader is gone with what it had not written; another one rebuilds its mind from the store."""
        self.epoch += 1
        self.writes, self.told, self.shares = [], {}, {}
        self.leader = Dispatcher(max_attempts=MOST_ATTEMPTS, node_lost_s=NODE_LOST_S)
        self.do(self.leader.planned(self.now, self.planned))
        for trajectory, ended in self.over.items():
            self.leader.trajectory_ended(trajectory, ended)
        for trajectory, (host, units) in self.placements.items():
            self.leader.trajectory_placed(trajectory, host, units)
        self.do(self.leader.submitted(self.now, self.journal.values()))
        for action in list(self.journal):
            if action in self.leader.lives and (action in self.marks or action in self.steps):
                stage, acts = self.steps.get(action, (0, ()))
                attempt, host = self.marks.get(action, (0, ""))
                self.leader.resumed(self.now, action, stage, attempt, acts, host)
        for at, hello in self.hellos:
            if self.now - at < NODE_LOST_S:
                fresh = Node(hello.name, hello.incarnation, hello.node_class, hello.capacity, hello.kinds)
                fresh.lines_up = hello.lines_up
                self.do(self.leader.node_said_hello(self.now, fresh))
        self.read = 0
        self.lead_reads(len(self.outcomes))

    def lead_reads(self, most: int) -> None:
        """The leader reads on: runs of outcomes together, as its shell does."""
        entries = self.outcomes[self.read : self.read + most]
        self.read += len(entries)
        ends: list[Ended] = []
        for entry in entries:
            if isinstance(entry, Ended):
                ends.append(entry)
                continue
            self.do(self.leader.finished(self.now, ends))
            ends = []
            if isinstance(entry, Gone):
                gone = (entry.node, entry.incarnation, entry.trajectory, entry.ended, "so be it")
                self.do(self.leader.environment_ended(self.now, *gone))
                continue
            if entry.epoch == self.epoch:
                self.told.setdefault(entry.node, set()).add(entry.incarnation)
                account = (entry.held, entry.environments)
                self.do(self.leader.inventory_taken(self.now, entry.node, entry.incarnation, *account))
        self.do(self.leader.finished(self.now, ends))

    def do(self, commands: Iterable[Command]) -> None:
        """The leader's decisions, on their way to be written; looked at as they are made."""
        for command in commands:
            if isinstance(command, Grant):
                node = self.leader.floor.nodes[command.node]
                assert node.incarnation in self.told.get(node.name, ()), f"{node.name} has not told what it holds"
                recalls = self.leader.lives[command.action].recalls
                self.recalled += recalls > 0
                assert 1 <= command.attempt <= MOST_ATTEMPTS + recalls, f"attempts are bounded: {command}"
                self._fits_its_work(command)
            if isinstance(command, SetShare):
                node = self.hosts[command.node].hello()
                assert 0 <= command.units <= node.capacity[command.resource], f"not to be owned: {command}"
                self.shares[node.incarnation, command.resource] = command.units
            if isinstance(command, Advance):
                self.carried[command.action, command.stage] = tuple(self.leader.lives[command.action].acts)
            if isinstance(command, Answer):
                self._adds_up(command)
            to = "" if isinstance(command, Answer | Advance | ForgetTrajectory) else self.address(command.node)
            self.writes.append((to, command))

    def _fits_its_work(self, grant: Grant) -> None:
        """It is granted what it asks for: the fewest, or more of what scales, by an amount that is allowed."""
        work = self.requests[grant.action].stages[grant.stage]
        if grant.units != work.units:
            resource = work.pool.partition("@")[0]
            assert grant.units[resource] in work.amounts, f"it cannot use so many: {grant}"
            assert {**grant.units, resource: work.units[resource]} == work.units, f"not what it asks for: {grant}"
            self.widened += 1

    def _adds_up(self, answer: Answer) -> None:
        """Queueing and execution are parts of the time that has passed; what was never sent only queued."""
        passed_s = self.now - self.requests[answer.action].arrival[0] / 1000
        parts = [part for act in answer.acts for part in (act.queue_s, act.execution_s)]
        parts += [answer.queue_s, answer.execution_s]
        told = f"{answer} after {passed_s} s"
        assert min(parts) >= 0, f"less than no time: {told}"
        assert sum(parts) <= passed_s + 0.001, f"more time than has passed: {told}"
        if all(action != answer.action for action, _, _ in self.sent):
            assert abs(answer.queue_s - passed_s) < 0.001, f"it never left, and its time is not queueing: {told}"

    def address(self, name: str) -> str:
        """The incarnation that the leader knows under this name; where it has none, the newest that said hello."""
        node = self.leader.floor.nodes.get(name)
        return node.incarnation if node is not None else self.hosts[name].incarnation

    def write(self, most: int) -> None:
        """The oldest decisions become durable, one after the other."""
        for _ in range(min(most, len(self.writes))):
            incarnation, command = self.writes.pop(0)
            match command:
                case Answer():
                    self._answer(command)
                case Advance():
                    self.steps[command.action] = (command.stage, self.carried[command.action, command.stage])
                    self.marks.pop(command.action, None)
                case Grant():
                    assert (command.action, command.stage, command.attempt) not in self.sent, f"sent twice: {command}"
                    self.sent.add((command.action, command.stage, command.attempt))
                    self.marks[command.action] = (command.attempt, command.node)
                    stay = self.requests[command.action].stay
                    if command.begins and stay is not None:
                        self.placements[stay.trajectory] = (command.node, dict(stay.units))
                    self._send(incarnation, command)
                case ForgetTrajectory():
                    self.placements.pop(command.trajectory, None)
                    if command.ended != "unmade":
                        self.over.setdefault(command.trajectory, command.ended)
                case _:
                    self._send(incarnation, command)

    def tear(self) -> None:
        """The leader dies over a write: its answers are gone, though what it sent in the same breath has arrived."""
        writes, self.writes = self.writes, []
        for kinds in (ForgetTrajectory, Advance, (Grant, Revoke, AskInventory, SetShare, CloseEnvironment)):
            self.writes = [one for one in writes if isinstance(one[1], kinds)]
            self.write(len(self.writes))
        self.take_over()

    def _send(self, incarnation: str, message: Command) -> None:
        for host in self.hosts.values():
            if host.incarnation == incarnation:
                host.inbox.append((self.epoch, message))

    def _answer(self, answer: Answer) -> None:
        assert answer.action not in self.answers, f"answered twice: {self.answers[answer.action]}, {answer}"
        del self.journal[answer.action]
        self.marks.pop(answer.action, None)
        self.steps.pop(answer.action, None)
        self.answers[answer.action] = answer
        self.judge(answer)

    def judge(self, answer: Answer) -> None:
        """Is this what the world has seen?"""
        request = self.requests[answer.action]
        ends = [one for one in self.outcomes if isinstance(one, Ended) and one.action == answer.action]
        last = len(request.stages) - 1
        verdicts = {(end.stage, end.status, end.passed) for end in ends if end.status in ("ok", "timeout")}
        match answer.ended:
            case "ok":
                passed_all = all(any((stage, "ok", p) in verdicts for p in (True, None)) for stage in range(last + 1))
                failed = any(status == "ok" and passed is False for _, status, passed in verdicts)
                assert passed_all or failed, f"a verdict was made up: {answer} of {verdicts}"
            case "timeout":
                assert any(status == "timeout" for _, status, _ in verdicts), f"a timeout was made up: {answer}"
            case "cancelled":
                assert answer.action in self.cancels, f"nobody asked to cancel {answer}"
            case "expired":
                late = request.start_by_s is not None
                assert late or self.now >= request.deadline_s, f"its time has not come: {answer}"
            case "refused":
                assert any(end.status == "refused" for end in ends), f"nobody refused {answer}"
            case "environment-lost":
                assert request.stay is not None, f"it has no environment: {answer}"
                assert self.troubled, f"its environment has never been lost: {answer}"
            case "unknown-outcome":
                assert any(not stage.repeatable for stage in request.stages), f"it can be repeated: {answer}"
            case "node-lost" | "sandbox-lost":
                tried = {key for key in self.sent if key[0] == answer.action}
                assert any(attempt >= MOST_ATTEMPTS for _, _, attempt in tried), f"given up early: {answer}"
        stages = [act.name for act in answer.acts]
        assert stages == [stage.name for stage in request.stages][: len(stages)], f"stages are told in order: {answer}"

    # ---- hosts -------------------------------------------------------------------------------------------------

    def deliver(self, host: Host, most: int) -> None:
        """A host reads the next messages that were sent to it."""
        for _ in range(min(most, len(host.inbox)) if host.alive else 0):
            epoch, message = host.inbox.pop(0)
            match message:
                case Grant() if not self._has_its_home(host, message):
                    self._tell(host, Run(message, self.now), "environment-lost")
                case CloseEnvironment():
                    self.close_home(host, message.trajectory)
                case Grant():
                    begun = host.take(message, self.now)
                    self.waited += message.action in host.line
                    self._begun(begun)
                case Revoke() if message.action in host.line:
                    if host.line[message.action].grant.attempt == message.attempt:
                        run = host.line.pop(message.action).waited(self.now)
                        self._tell(host, run, "lost" if message.recall else "cancelled")
                        self._begun(host.advance(self.now))
                case Revoke():
                    known = host.runs.get(message.action)
                    if known is not None and known.grant.attempt == message.attempt and not message.recall:
                        known.revoked = True
                case AskInventory():
                    account = (host.held(self.now), dict(host.environments))
                    self.outcomes.append(Inventory(host.name, host.incarnation, epoch, *account))
                case _:
                    pass

    def _has_its_home(self, host: Host, grant: Grant) -> bool:
        stay = self.requests[grant.action].stay
        if stay is None:
            return True
        acting = [run for run in host.runs.values() if self._trajectory(run) == stay.trajectory and not run.revoked]
        assert not acting, f"two actions at once in one environment: {acting}, {grant}"
        if grant.begins and stay.trajectory not in host.environments:
            assert stay.trajectory not in self.began, f"a fresh environment in the midst of a trajectory: {grant}"
            assert stay.kind in host.kinds, f"{host.name} cannot make it: {grant}"
            self.began.add(stay.trajectory)
            host.environments[stay.trajectory] = dict(stay.units)
        return stay.trajectory in host.environments

    def _trajectory(self, run: Run) -> str:
        stay = self.requests[run.grant.action].stay
        return stay.trajectory if stay is not None else ""

    def close_home(self, host: Host, trajectory: str, ended: TrajectoryEnd = "closed") -> None:
        """An environment ends: first what acts in it, then it; then its end is told, also where there was none."""
        for run in [run for run in host.runs.values() if self._trajectory(run) == trajectory]:
            self.end(host, run, "cancelled" if ended == "closed" or run.revoked else "lost")
        self.troubled.add(trajectory)
        host.environments.pop(trajectory, None)
        self.outcomes.append(Gone(host.name, host.incarnation, trajectory, ended))

    def close(self, trajectory: str) -> None:
        """Its trainer closes a trajectory."""
        self.troubled.add(trajectory)
        self.over.setdefault(trajectory, "closed")
        self.cancels |= {name for name, one in self.journal.items() if one.stay and one.stay.trajectory == trajectory}
        self.do(self.leader.trajectory_closed(self.now, trajectory))

    def _begun(self, runs: Iterable[Run]) -> None:
        for run in runs:
            grant = run.grant
            self.executed.append((grant.action, grant.stage))
            stage = self.requests[grant.action].stages[grant.stage]
            again = self.executed.count((grant.action, grant.stage)) > 1
            assert stage.repeatable or not again, f"executed twice: {grant}"
            for earlier in range(grant.stage):
                assert self._passed(grant.action, earlier), f"stage {earlier} has not passed: {grant}"

    def _passed(self, action: str, stage: int) -> bool:
        return any(
            isinstance(end, Ended)
            and (end.action, end.stage, end.status) == (action, stage, "ok")
            and end.passed is not False
            for end in self.outcomes
        )

    def end(self, host: Host, run: Run, status: str, passed: bool | None = None, *, stands: bool = True) -> None:
        """An execution ends; its units are free before it is told. Not `stands`: its environment was not made."""
        del host.runs[run.grant.action]
        if not stands and run.grant.begins:
            del host.environments[self._trajectory(run)]
            self.began.discard(self._trajectory(run))
            self.executed.remove((run.grant.action, run.grant.stage))
            self.troubled.add("unmade")  # whose outcome may be trimmed
            self._begun(host.advance(self.now))
            self._tell(host, run, status, passed, stands=False)
            return
        self._begun(host.advance(self.now))
        self._tell(host, run, status, passed)

    def _tell(self, host: Host, run: Run, status: str, passed: bool | None = None, *, stands: bool = True) -> None:
        grant, lasted_s = run.grant, self.now - run.since
        self.outcomes.append(
            Ended(
                grant.action,
                host.name,
                grant.attempt,
                grant.stage,
                status,
                passed,
                run.queue_s,
                lasted_s,
                "so be it",
                stands,
            )
        )

    def stop(self, host: Host, *, orderly: bool) -> None:
        """A host goes: in good order it tells of everything, otherwise not even that."""
        if orderly:
            for run in host.line.values():
                self._tell(host, run.waited(self.now), "lost")
            host.line.clear()
            for run in list(host.runs.values()):
                self.end(host, run, "cancelled" if run.revoked else "lost")
            for trajectory in list(host.environments):
                self.close_home(host, trajectory, "lost")
            if host.name in self.leader.floor.nodes:
                node = self.leader.floor.nodes[host.name]
                if node.incarnation == host.incarnation:
                    self.do(self.leader.node_lost(self.now, host.name, "it has stopped"))
        self.troubled.add(host.name)
        host.alive = False
        host.inbox.clear()
        host.runs.clear()
        host.line.clear()

    def start(self, host: Host, *, survive: bool = False) -> None:
        """A host comes (back), in a new life. Some environments outlive its process."""
        if not survive:
            host.environments.clear()
        host.inbox.clear()
        host.runs.clear()
        host.line.clear()
        host.life += 1
        host.alive = host.heard = True
        self.hellos.append((self.now, host.hello()))
        self.do(self.leader.node_said_hello(self.now, host.hello()))

    def beat(self) -> None:
        """Heartbeats of all that are heard."""
        for host in self.hosts.values():
            known = self.leader.node_seen(self.now, host.name, host.incarnation) if host.alive and host.heard else True
            if not known:
                self.do(self.leader.node_said_hello(self.now, host.hello()))

    def pass_time(self, seconds: float) -> None:
        """Nobody does anything for so long, but hearts beat."""
        self.now += seconds
        self.beat()
        self.do(self.leader.ticked(self.now))

    def submit(self, request: Request) -> None:
        self.requests[request.id] = self.journal[request.id] = request
        self.do(self.leader.submitted(self.now, [request]))

    # ---- the end of a history ----------------------------------------------------------------------------------

    def check_shares(self) -> None:
        """Every node that is ready knows what it owns of a pool that the planner scales."""
        for pool in self.leader.floor.pools.values():
            if pool.target is not None:
                nodes = [node for node in self.leader.floor.nodes_of(pool) if node.ready]
                owned = 0
                for node in nodes:
                    told = self.shares.get((node.incarnation, pool.resource))
                    assert told == node.share.get(pool.resource), f"{node.name} was told {told} of {pool.resource}"
                    owned += told or 0
                capacity = sum(node.capacity.get(pool.resource, 0) for node in nodes)
                assert owned >= min(capacity, pool.target), f"{pool.name} owns less than its target"
                if not self.planned and pool.queue:
                    self.starved += 1
                    assert owned == capacity, f"{pool.name}: work waits for want of a target, and no planner lives"

    def check_backlog(self) -> None:
        """What is said to wait waits, and what is said to be stuck could run on no node the leader knows."""
        floor = self.leader.floor
        told = survey(floor)
        waiting = Counter(life.work.pool for life in floor.queued.values())
        assert {pool.name: pool.waiting for pool in told.pools} == waiting
        stuck = [life for life in floor.queued.values() if why_stuck(life.work, told.pools, life.request.stay)]
        for life in stuck:
            nodes = floor.nodes_of(floor.pool(life.work.pool))
            assert not any(life.could_run_on(node) for node in nodes), f"not stuck: {life}"
        assert sum(pool.stuck for pool in told.pools) <= len(stuck)
        assert sum(told.stuck.values()) <= sum(pool.stuck for pool in told.pools)
        if not floor.nodes:
            assert len(stuck) == sum(waiting.values()), "all is stuck where there are no nodes"

    def check_standings(self) -> None:
        """Every unanswered request of a batch stands in one place, and runs where it has units."""
        told = standings(self.leader.floor)
        lives = [life for life in self.leader.lives.values() if life.request.batch]
        assert told.keys() == {life.request.batch for life in lives}
        for name, batch in told.items():
            mine = [life for life in lives if life.request.batch == name]
            for stage, (queuing, running) in enumerate(zip(batch.queuing, batch.running, strict=True)):
                here = [life for life in mine if life.stage == stage]
                waits = [life for life in here if not life.booked and life.state != "cancelling"]
                assert sorted(queuing[::2]) == sorted(life.request.arrival[0] / 1000 for life in waits)
                assert len(running) == 3 * sum(life.booked for life in here)
                for arrived_s, began_s in zip(running[::3], running[2::3], strict=True):
                    assert arrived_s <= began_s + 0.001, f"{name}: it began before it came"
                    assert began_s <= self.now, f"{name}: it has not begun yet"

    def settle(self, rounds: int) -> None:
        """Everything that is under way arrives; executions go well."""
        for _ in range(rounds):
            self.write(len(self.writes))
            for host in self.hosts.values():
                self.deliver(host, len(host.inbox))
                for run in list(host.runs.values()):
                    self.end(host, run, "cancelled" if run.revoked else "ok", None if run.revoked else True)
            self.lead_reads(len(self.outcomes))

    def quiesce(self) -> None:
        """The world heals: whatever can be answered is answered, and nothing is left anywhere."""
        for host in self.hosts.values():
            host.heard = True
            if not host.alive:
                self.start(host)
        for _ in range(3 * len(self.journal) + 20):
            self.settle(2)
            self.pass_time(5.0)
        self.settle(2)
        for trajectory in sorted({one.stay.trajectory for one in self.requests.values() if one.stay}):
            self.close(trajectory)  # their memory is others' to use
        for _ in range(3 * len(self.journal) + 3):
            self.settle(2)
            self.pass_time(5.0)
        for name, request in self.journal.items():
            stage = self.leader.lives[name].work
            able = any(host.hello().could_ever(stage.kind, stage.units) for host in self.hosts.values())
            assert not able, f"it waits though a host could take it: {request}"
        self.pass_time(2e6)
        self.settle(2)
        assert self.answers.keys() == self.requests.keys(), "all are answered"
        assert not self.leader.lives
        for node in self.leader.floor.nodes.values():
            assert not any(node.used.values()), f"units of {node.name} are still taken: {node.used}"
            assert not node.strays
        assert not self.placements, f"closed, and still placed: {self.placements}"
        known = self.leader.floor.trajectories
        assert not known.homes
        assert not known.turns
        assert not known.strays
        for pool in self.leader.floor.pools.values():
            assert not pool.queue
            assert not pool.parked
            assert pool.demand.units == pool.outside.units == 0
