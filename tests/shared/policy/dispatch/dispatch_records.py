"""Records of a simulated mesh, and the laws that they must keep.

The laws use nothing of the dispatcher's internals: they hold for any observer of messages, store and hosts.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from shared.policy.dispatch.backlog import survey
from shared.policy.dispatch.batch_snapshots import batch_snapshots
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.model.formulation import AnswerAction, Command, Grant, Request, StageAct
from shared.policy.model.reports import Ended
from shared.policy.model.results import UpstreamAnswer
from shared.policy.resources.ledger import Node
from shared.policy.resources.quota_refusals import why_never
from tests.shared.policy.dispatch.dispatch_hosts import EnvironmentEndReport, Host, Inventory, ParkReport
from tests.shared.policy.dispatch.dispatch_quotas import StoredQuotas
from tests.shared.policy.strategies import QUOTAS

MOST_ATTEMPTS = 3


@dataclass(slots=True)
class Records:
    """Hosts, store and streams, and the present leader."""

    hosts: dict[str, Host]
    now: float = 1000.0
    epoch: int = 0
    answer: UpstreamAnswer = "ok"
    """Answer of the services behind all quotas."""
    asked_s: float = 0.0
    """Time for which they want no call."""
    leader: Dispatcher = field(default_factory=Dispatcher)
    journal: dict[str, Request] = field(default_factory=dict)
    marks: dict[str, tuple[int, str]] = field(default_factory=dict)
    steps: dict[str, tuple[int, tuple[StageAct, ...]]] = field(default_factory=dict)
    carried: dict[tuple[str, int], tuple[StageAct, ...]] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    local: dict[str, Request] = field(default_factory=dict)
    """Actions of the leader's own callers: they are journaled when their first grant is written."""
    rejected: set[str] = field(default_factory=set)
    """Those that the journal does not accept."""
    withdrawn: set[str] = field(default_factory=set)
    """Those that the leader has withdrawn or lost: nothing of them was written."""
    priorities: dict[str, float] = field(default_factory=dict)
    """Trajectory -> its priority, as its record has it."""
    answers: dict[str, AnswerAction] = field(default_factory=dict)
    outcomes: list[Ended | Inventory | EnvironmentEndReport | ParkReport] = field(default_factory=list)
    read: int = 0
    """Number of `outcomes` that the leader has read."""
    writes: list[tuple[str, Command]] = field(default_factory=list)
    """Commands not yet written, each with the incarnation it goes to."""
    inventoried: dict[str, set[str]] = field(default_factory=dict)
    """Node -> incarnations whose inventory this leader has taken."""
    shares: dict[tuple[str, str], int] = field(default_factory=dict)
    """(Incarnation, resource) -> units that this leader last assigned to own."""
    sent: set[tuple[str, int, int]] = field(default_factory=set)
    """(action, stage, attempt) ever sent to a host."""
    executed: list[tuple[str, int]] = field(default_factory=list)
    """(action, stage) of every execution that has begun."""
    waited: int = 0
    """Grants that waited in a host's queue."""
    parked: int = 0
    """Number of times that an attempt was parked."""
    resumed: int = 0
    adopted: int = 0
    """Parked attempts in inventories that a leader has read."""
    recalled: int = 0
    """Grants of actions that had been recalled."""
    most_ended: int = 2
    """`DispatchConfig.most_ended`: small, so that cancellations and deadlines come in parts."""
    together: bool = False
    """The leader handles everything that it reads in one call, with one scheduling round."""
    planned: bool = True
    """The planner's lease exists."""
    starved: int = 0
    """Number of times that work waited without a planner although all units were owned."""
    cancels: set[str] = field(default_factory=set)
    placements: dict[str, tuple[str, dict[str, int]]] = field(default_factory=dict)
    """Trajectory -> its stored placement and units."""
    over: dict[str, str] = field(default_factory=dict)
    """Trajectory -> its stored end."""
    began: set[str] = field(default_factory=set)
    """Trajectories whose environment has begun and was not reported as not created."""
    troubled: set[str] = field(default_factory=set)
    """Hosts that were ever away, and trajectories whose environment ever ended."""
    elastic_grants: int = 0
    """Grants of more than the fewest units."""
    hellos: list[tuple[float, Node]] = field(default_factory=list)
    quotas: StoredQuotas = field(default_factory=lambda: StoredQuotas(dict(QUOTAS)))
    """Quotas as the store has them."""
    cut: set[str] = field(default_factory=set)
    """Hosts that were ever cut off: the leader may have counted them as lost while they ran on."""

    # ---- decisions and answers ---------------------------------------------------------------------------------

    def _fits_its_work(self, grant: Grant) -> None:
        """Assert that the units are the fewest or, for elastic work, another allowed amount."""
        work = self.requests[grant.action].stages[grant.stage]
        if grant.units != work.units:
            resource = work.pool.partition("@")[0]
            assert grant.units[resource] in work.amounts, f"not an allowed amount: {grant}"
            assert {**grant.units, resource: work.units[resource]} == work.units, f"other units than requested: {grant}"
            self.elastic_grants += 1

    def _adds_up(self, answer: AnswerAction) -> None:
        """Assert that the parts are no more than the passed time: queueing, execution, time parked, and waiting for
        model services. All is queueing if it was never sent.
        """
        passed_s = self.now - self.requests[answer.action].arrival[0] / 1000
        stages: list[StageAct | AnswerAction] = [*answer.acts, answer]
        parts = [part for one in stages for part in (one.queue_s, one.execution_s, one.parked_s, one.restore_s)]
        found = f"{answer} after {passed_s} s"
        assert min(parts) >= 0, f"less than no time: {found}"
        assert sum(parts) <= passed_s + 0.001, f"more time than has passed: {found}"
        if all(action_id != answer.action for action_id, _, _ in self.sent):
            assert abs(answer.queue_s - passed_s) < 0.001, f"it never left, and its time is not queueing: {found}"

    def check_answer(self, answer: AnswerAction) -> None:
        """Assert that the answer follows from the outcomes."""
        request = self.requests[answer.action]
        ends = [one for one in self.outcomes if isinstance(one, Ended) and one.action == answer.action]
        last = len(request.stages) - 1
        verdicts = {(end.stage, end.result.status, end.result.passed) for end in ends if end.result.is_verdict}
        match answer.ended:
            case "ok":
                passed_all = all(any((stage, "ok", p) in verdicts for p in (True, None)) for stage in range(last + 1))
                failed = any(status == "ok" and passed is False for _, status, passed in verdicts)
                assert passed_all or failed, f"an invented verdict: {answer} of {verdicts}"
            case "timeout":
                assert any(status == "timeout" for _, status, _ in verdicts), f"an invented timeout: {answer}"
            case "cancelled":
                assert answer.action in self.cancels, f"cancelled without a request: {answer}"
            case "expired":
                late = request.start_by_s is not None
                assert late or self.now >= request.deadline_s, f"expired too early: {answer}"
            case "upstream-failed":
                failed = any(end.result.status == "upstream-failed" for end in ends)
                late = self.now >= request.deadline_s and any(end.result.status == "postponed" for end in ends)
                assert failed or late, f"an invented failure of an external service: {answer}"
            case "refused":
                assert any(end.result.status == "refused" for end in ends), f"rejected by no node: {answer}"
            case "environment-lost":
                assert request.need is not None, f"it has no environment: {answer}"
                assert self.troubled or self.cut, f"its environment has never been lost: {answer}"
            case "unknown-outcome":
                assert any(not stage.repeatable for stage in request.stages), f"it can be repeated: {answer}"
            case "node-lost" | "sandbox-lost":
                tried = {key for key in self.sent if key[0] == answer.action}
                assert any(attempt >= MOST_ATTEMPTS for _, _, attempt in tried), f"given up early: {answer}"
        stages = [act.name for act in answer.acts]
        assert stages == [stage.name for stage in request.stages][: len(stages)], f"stages in order: {answer}"

    # ---- at any time -------------------------------------------------------------------------------------------

    def check_withdrawn(self) -> None:
        """Assert that the leader has exactly the accepted, unanswered actions, and that no withdrawn one is left."""
        answered = {command.action for _, command in self.writes if isinstance(command, AnswerAction)}
        known = set(self.leader.registry.actions)
        assert known == (self.journal.keys() | self.local.keys()) - answered, "actions that the leader knows"
        sent = {action for action, _, _ in self.sent}
        held = {name for host in self.hosts.values() for name in (*host.runs, *host.queue)}
        for names in (known, answered, sent, held, self.answers.keys()):
            assert self.withdrawn.isdisjoint(names), f"withdrawn, and not forgotten: {self.withdrawn & names}"

    def seen(self) -> object:
        """Return what an observer sees of the leader, apart from stuck work: a round may notice more of that."""
        leader, found = self.leader, self.leader.survey(self.now)
        nodes = {name: leader.node(name) for name in leader.node_names()}
        waiting = {pool.name: pool.waiting for pool in found.pools}
        return nodes, leader.unanswered, waiting, found.quotas, leader.batch_snapshots(), leader.brakes()

    def check_shares(self) -> None:
        """Assert that every ready node has received its share of each pool that the planner scales."""
        for pool in self.leader.cluster.queues.pools.values():
            if pool.target is not None:
                nodes = [node for node in self.leader.cluster.nodes.of(pool) if node.ready]
                owned = 0
                for node in nodes:
                    found = self.shares.get((node.incarnation, pool.resource))
                    assert found == node.share(pool.resource), f"{node.name} was assigned {found} of {pool.resource}"
                    owned += found or 0
                capacity = sum(node.capacity.get(pool.resource, 0) for node in nodes)
                assert owned >= min(capacity, pool.target), f"{pool.name} owns less than its target"
                if not self.planned and pool.queue:
                    self.starved += 1
                    assert owned == capacity, f"{pool.name}: work waits without a planner although units are not owned"

    def check_quotas(self) -> None:
        """Assert that what runs never exceeds a concurrency, and grants no rate in any window."""
        hosts = [host for host in self.hosts.values() if host.alive and host.name not in self.cut]
        held = [run.grant.hold.amounts for host in hosts for run in host.runs.values() if run.grant.hold is not None]
        for name in self.quotas.fixed:
            used = sum(amounts.get(name, 0.0) for amounts in held)
            most = min(self.quotas.limits[name].concurrency, default=math.inf)
            assert used <= most + 1e-6, f"{used} of {name} run at once"
        self.quotas.check_windows()

    def check_backlog(self) -> None:
        """Assert that reported waiting work waits, and that reported stuck work could run on no present node."""
        cluster = self.leader.cluster
        found, reasons = survey(cluster), self.leader.waiting_reasons().actions
        waiting = Counter(action.work.pool for action in cluster.queues.queued.values())
        assert {pool.name: pool.waiting for pool in found.pools} == waiting
        stuck = [
            action
            for action in cluster.queues.queued.values()
            if (reason := reasons.get((action.request.id, action.stage))) is not None and reason.wait == "stuck"
        ]
        for action in stuck:
            if why_never(cluster.quotas, action.amounts):
                continue
            nodes = cluster.nodes.of(cluster.queues.pool(action.work.pool))
            assert not any(action.could_run_on(node) for node in nodes), f"not stuck: {action}"
        assert sum(pool.stuck for pool in found.pools) == len(stuck)
        assert sum(found.stuck.values()) <= sum(pool.stuck for pool in found.pools)
        if not cluster.nodes.present:
            assert len(stuck) == sum(waiting.values()), "all is stuck where there are no nodes"

    def check_snapshots(self) -> None:
        """Assert that each unanswered request of a batch is counted once, and runs where it has units."""
        found = batch_snapshots(self.leader.cluster)
        actions = [action for action in self.leader.registry.actions.values() if action.request.batch]
        assert found.keys() == {action.request.batch for action in actions}
        for name, batch in found.items():
            mine = [action for action in actions if action.request.batch == name]
            for stage, (queuing, running) in enumerate(zip(batch.queuing, batch.running, strict=True)):
                here = [action for action in mine if action.stage == stage]
                waits = [action for action in here if not action.allocated and action.state != "cancelling"]
                assert sorted(queuing[::2]) == sorted(action.request.arrival[0] / 1000 for action in waits)
                assert len(running) == 3 * sum(action.allocated for action in here)
                for arrived_s, began_s in zip(running[::3], running[2::3], strict=True):
                    assert arrived_s <= began_s + 0.001, f"{name}: it began before it came"
                    assert began_s <= self.now, f"{name}: it has not begun yet"
