"""A simulated mesh around a dispatcher, reduced to failures.

Hosts execute what reaches them, lose messages when they die, and report late. A store keeps grants and answers. Leaders
die with unwritten commands (`dispatch_leader`). `dispatch_records` asserts the laws.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.stimuli import NodeLost, NodeSeen, PriorityChanged, TickPassed, TrajectoryClosed
from shared.policy.model.formulation import (
    AskInventory,
    CloseEnvironment,
    Grant,
    Park,
    Request,
    Resume,
    Revoke,
    TrajectoryEnd,
)
from shared.policy.model.quotas import QuotaLimits
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult, ExecutionStatus, Feedback
from tests.shared.policy.dispatch.dispatch_hosts import EnvironmentEndReport, Host, Inventory, ParkReport, Run
from tests.shared.policy.dispatch.dispatch_leader import LeaderRecords
from tests.shared.policy.strategies import joined, submitted


@dataclass(slots=True)
class DispatchSimulation(LeaderRecords):
    """Hosts that execute, and time that passes."""

    def __post_init__(self) -> None:
        for host in self.hosts.values():
            self.hellos.append((self.now, host.hello()))
        self.take_over()

    # ---- hosts -------------------------------------------------------------------------------------------------

    def deliver(self, host: Host, most: int) -> None:
        """A host reads its next messages."""
        for _ in range(min(most, len(host.inbox)) if host.alive else 0):
            epoch, message = host.inbox.pop(0)
            match message:
                case Grant() if not self._has_environment(host, message):
                    self._report(host, Run(message, self.now), "environment-lost")
                case CloseEnvironment():
                    self.end_environment(host, message.trajectory)
                case Grant():
                    begun = host.take(message, self.now)
                    self.waited += message.action in host.queue
                    self._begun(begun)
                case Revoke() if message.action in host.queue:
                    if host.queue[message.action].grant.attempt == message.attempt:
                        run = host.queue.pop(message.action).waited(self.now)
                        self._report(host, run, "lost" if message.recall else "cancelled")
                        self._begun(host.advance(self.now))
                case Revoke():
                    known = host.runs.get(message.action)
                    if known is not None and known.grant.attempt == message.attempt and not message.recall:
                        known.revoked = True
                case Park() if message.action in host.runs:
                    self.park(host, host.runs[message.action], message.attempt)
                case Resume():
                    self._resume(host, message)
                case AskInventory():
                    account = (host.held(self.now), dict(host.environments))
                    self.outcomes.append(Inventory(host.name, host.incarnation, epoch, *account))
                case _:
                    pass

    def _has_environment(self, host: Host, grant: Grant) -> bool:
        need = self.requests[grant.action].need
        if need is None:
            return True
        acting = [run for run in host.runs.values() if self._trajectory(run) == need.trajectory and not run.revoked]
        assert not acting, f"two actions at once in one environment: {acting}, {grant}"
        if grant.begins and need.trajectory not in host.environments:
            assert need.trajectory not in self.began, f"a fresh environment in the midst of a trajectory: {grant}"
            assert need.kind in host.kinds, f"{host.name} cannot make it: {grant}"
            self.began.add(need.trajectory)
            host.environments[need.trajectory] = dict(need.units)
        return need.trajectory in host.environments

    def _trajectory(self, run: Run) -> str:
        need = self.requests[run.grant.action].need
        return need.trajectory if need is not None else ""

    def end_environment(self, host: Host, trajectory: str, ended: TrajectoryEnd = "closed") -> None:
        """End an environment: first its actions, then itself; then report the end, also if there was none."""
        for run in [run for run in host.runs.values() if self._trajectory(run) == trajectory]:
            self.end(host, run, "cancelled" if ended == "closed" or run.revoked else "lost")
        self.troubled.add(trajectory)
        host.environments.pop(trajectory, None)
        self.outcomes.append(EnvironmentEndReport(host.name, host.incarnation, trajectory, ended))

    def close(self, trajectory: str) -> None:
        """Close a trajectory for its trainer."""
        self.troubled.add(trajectory)
        self.over.setdefault(trajectory, "closed")
        self.cancels |= {name for name, one in self.journal.items() if one.need and one.need.trajectory == trajectory}
        self.do(self.leader.handle(self.now, TrajectoryClosed(trajectory)))

    def prioritize(self, trajectory: str, priority: float) -> None:
        """Change the priority of a trajectory for its trainer."""
        self.priorities[trajectory] = priority
        self.do(self.leader.handle(self.now, PriorityChanged(trajectory, priority)))

    def _begun(self, runs: Iterable[Run]) -> None:
        for run in runs:
            grant = run.grant
            self.executed.append((grant.action, grant.stage))
            stage = self.requests[grant.action].stages[grant.stage]
            again = self.executed.count((grant.action, grant.stage)) > 1
            assert stage.repeatable or not again, f"executed twice: {grant}"
            for earlier in range(grant.stage):
                assert self._passed(grant.action, earlier), f"stage {earlier} has not passed: {grant}"

    def _passed(self, action_id: str, stage: int) -> bool:
        return any(
            isinstance(end, Ended)
            and (end.action, end.stage, end.result.status) == (action_id, stage, "ok")
            and end.result.passed is not False
            for end in self.outcomes
        )

    def park(self, host: Host, run: Run, attempt: int) -> None:
        """Freeze an attempt in an environment, free its units, and report it. No effect if it is parked already."""
        if not self._trajectory(run) or run.parked or run.grant.attempt != attempt:
            return
        run.parked, run.paused_at = True, self.now
        self.parked += 1
        self.outcomes.append(ParkReport(run.grant.action, attempt))
        self._begun(host.advance(self.now))

    def ask_to_resume(self, run: Run) -> None:
        """Report that a parked attempt asks to continue."""
        run.resuming = True
        self.outcomes.append(ParkReport(run.grant.action, run.grant.attempt, resuming=True))

    def _resume(self, host: Host, command: Resume) -> None:
        run = host.runs.get(command.action)
        if run is None or run.grant.attempt != command.attempt:
            return  # it has ended
        assert run.parked, f"it is not parked: {command}"
        assert command.units == run.grant.units, f"other units than it had: {command}"
        assert host.fits(run.grant), f"{host.name} cannot hold {command}"
        run.parked = run.resuming = False
        run.paused_s += self.now - run.paused_at
        self.resumed += 1

    def end(
        self, host: Host, run: Run, status: ExecutionStatus, passed: bool | None = None, *, exists: bool = True
    ) -> None:
        """End an execution; its units are free before the report. Not `exists`: its environment was not created."""
        del host.runs[run.grant.action]
        if not exists and run.grant.begins:
            del host.environments[self._trajectory(run)]
            self.began.discard(self._trajectory(run))
            self.executed.remove((run.grant.action, run.grant.stage))
            self.troubled.add("unmade")  # whose outcome may be trimmed
            self._begun(host.advance(self.now))
            self._report(host, run, status, passed, exists=False)
            return
        self._begun(host.advance(self.now))
        self._report(host, run, status, passed)

    def _report(
        self, host: Host, run: Run, status: ExecutionStatus, passed: bool | None = None, *, exists: bool = True
    ) -> None:
        paused_s = run.paused_s + (self.now - run.paused_at if run.parked else 0.0)
        grant, lasted_s = run.grant, self.now - run.since - paused_s
        restore_s = lasted_s * (0.0, 0.25, 0.0, 1.0, 0.5)[len(self.outcomes) % 5]
        taken = () if grant.hold is None else grant.hold.amounts
        feedback = tuple(Feedback(quota, self.answer, self.asked_s) for quota in taken)
        self.outcomes.append(
            Ended(
                grant.action,
                host.name,
                grant.attempt,
                grant.stage,
                AttemptResult(
                    status,
                    passed,
                    reason="so be it",
                    environment_exists=exists,
                    feedback=feedback,
                    quotas_used=self._used(grant),
                    restore_s=restore_s,
                ),
                queue_s=run.queue_s,
                execution_s=lasted_s - restore_s,
            )
        )

    def _used(self, grant: Grant) -> dict[str, float]:
        """What an attempt reports of its quotas: nothing, less or more than it took, or nonsense."""
        factor = (None, None, 0.4, 1.0, 1.6, math.nan)[len(self.outcomes) % 6]
        amounts = grant.hold.amounts if grant.hold is not None else {}
        return {} if factor is None else {name: amount * factor for name, amount in amounts.items()} | {"unknown": 1.0}

    def stop(self, host: Host, *, orderly: bool) -> None:
        """Stop a host: in good order with reports of everything, otherwise without any."""
        if orderly:
            for run in host.queue.values():
                self._report(host, run.waited(self.now), "lost")
            host.queue.clear()
            for run in list(host.runs.values()):
                self.end(host, run, "cancelled" if run.revoked else "lost")
            for trajectory in list(host.environments):
                self.end_environment(host, trajectory, "lost")
            if host.name in self.leader.cluster.nodes.present:
                node = self.leader.cluster.nodes.present[host.name]
                if node.incarnation == host.incarnation:
                    self.do(self.leader.handle(self.now, NodeLost(host.name, "it has stopped")))
        self.troubled.add(host.name)
        host.alive = False
        host.inbox.clear()
        host.runs.clear()
        host.queue.clear()

    def start(self, host: Host, *, survive: bool = False) -> None:
        """Start a host (again), in a new incarnation. Some environments outlive its process."""
        if not survive:
            host.environments.clear()
        host.inbox.clear()
        host.runs.clear()
        host.queue.clear()
        host.starts += 1
        host.alive = host.reachable = True
        self.hellos.append((self.now, host.hello()))
        self.do(self.leader.handle(self.now, joined(host.hello())))

    def beat(self) -> None:
        """Heartbeats of all reachable hosts."""
        for host in self.hosts.values():
            if not (host.alive and host.reachable):
                continue
            if self.leader.has_node(host.name, host.incarnation):
                self.leader.handle(self.now, NodeSeen(host.name, host.incarnation))
            else:
                self.do(self.leader.handle(self.now, joined(host.hello())))

    def pass_time(self, seconds: float) -> None:
        """Advance the clock with heartbeats only."""
        self.now += seconds
        self.beat()
        self.do(self.leader.handle(self.now, TickPassed()))
        self.quotas.brakes = self.leader.brakes()

    def submit(self, request: Request) -> None:
        self.requests[request.id] = self.journal[request.id] = request
        if self.leader.cancels(request.batch):
            self.cancels.add(request.id)
        self.do(self.leader.handle(self.now, submitted(request)))

    # ---- the end of a history ----------------------------------------------------------------------------------

    def settle(self, rounds: int) -> None:
        """Deliver everything under way; executions succeed."""
        for _ in range(rounds):
            self.go_on()
            self.write(len(self.writes))
            for host in self.hosts.values():
                self.deliver(host, len(host.inbox))
                for run in list(host.runs.values()):
                    if run.parked and not run.revoked:
                        self.ask_to_resume(run)
                        continue
                    self.end(host, run, "cancelled" if run.revoked else "ok", None if run.revoked else True)
            self.lead_reads(len(self.outcomes))

    def _relax_quotas(self) -> None:
        """Compare the levels of the leader with the store's, then let every quota give whatever is needed."""
        while self.writes:  # the withdrawal of a rejected action lets others be granted
            self.write(len(self.writes))
        quotas = self.leader.cluster.quotas
        for name, limits in self.quotas.limits.items():
            for rate in limits.rates:
                found, stored = quotas.missing(name, rate, self.now), self.quotas.missing(name, rate, self.now)
                assert abs(found - stored) < 1e-6, f"{name} {rate}: {found} at the leader, {stored} in the store"
        self.quotas.fixed = frozenset()
        self.answer, self.asked_s = "ok", 0.0
        for name in ("search", "money", "changing"):
            self.quotas.set(name, QuotaLimits((100.0,)))
            self.do(self.leader.handle(self.now, QuotaSet(name, QuotaLimits((100.0,)), self.now)))

    def quiesce(self) -> None:
        """Repair everything: whatever can be answered is answered, and nothing is left anywhere."""
        for host in self.hosts.values():
            host.reachable = True
            if not host.alive:
                self.start(host)
        self._relax_quotas()
        for _ in range(3 * len(self.journal) + 20):
            self.settle(2)
            self.pass_time(5.0)
        self.settle(2)
        for trajectory in sorted({one.need.trajectory for one in self.requests.values() if one.need}):
            self.close(trajectory)  # their memory is others' to use
        for _ in range(3 * len(self.journal) + 3):
            self.settle(2)
            self.pass_time(5.0)
        for name, request in self.journal.items():
            stage = self.leader.registry.actions[name].work
            able = any(host.hello().could_ever(stage.kind, stage.units) for host in self.hosts.values())
            assert not able, f"it waits though a host could take it: {request}"
        self.pass_time(2e6)
        self.settle(2)
        assert self.answers.keys() == self.requests.keys() - self.withdrawn, "all that were accepted are answered"
        assert not self.leader.registry.actions
        for node in self.leader.cluster.nodes.present.values():
            assert not any(node.used.values()), f"units of {node.name} are still taken: {node.used}"
            assert not node.orphans
        assert not self.placements, f"closed, and still placed: {self.placements}"
        assert not self.leader.cluster.trajectories.turns
        assert not self.leader.cluster.environments.placements
        assert not self.leader.cluster.environments.orphans
        assert not self.leader.cluster.quotas.holds
        assert not self.quotas.holds, "a hold stays in the store"
        for pool in self.leader.cluster.queues.pools.values():
            assert not pool.queue
            assert not pool.stuck
            assert pool.demand.units == pool.outside.units == 0
