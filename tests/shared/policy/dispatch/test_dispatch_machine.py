"""The dispatcher under random failures of everything, checked by laws that need no knowledge of its internals."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.stimuli import (
    ActionCancelled,
    AttemptStarted,
    BatchCancelled,
    EstimateReceived,
    ParkRequested,
    PlannerChecked,
    TargetReceived,
)
from shared.policy.model.formulation import EnvironmentNeed, Grant, Request, TrajectoryEnd
from shared.policy.model.quotas import QuotaLimits
from shared.policy.model.results import ExecutionStatus, UpstreamAnswer
from tests.shared.policy import strategies
from tests.shared.policy.dispatch.dispatch_hosts import Host
from tests.shared.policy.dispatch.dispatch_simulation import DispatchSimulation

CORES = frozenset({"cores"})
POOLS = (strategies.CORES, strategies.SLOTS, strategies.CHUNKS)

picks = st.integers(0, 7)
"""Index into a list of changing length, modulo the length."""

endings = st.sampled_from(
    [("ok", True), ("ok", None), ("ok", False), ("timeout", None), ("lost", None), ("lost", None), ("refused", None)]
)


def hosts() -> dict[str, Host]:
    """Two CPU hosts, one of which offers `judge`, and a GPU host."""
    some = (
        Host("a", "cpu", {"cores": 4, "memory": 8, "slots": 4}, frozenset({"run", "act", "runtime"}), prefetches=CORES),
        Host(
            "b",
            "cpu",
            {"cores": 4, "memory": 10, "slots": 2},
            frozenset({"run", "judge", "act", "runtime"}),
            prefetches=CORES,
        ),
        Host("g", "gpu", {"chunks": 4, "memory": 16}, frozenset({"run", "judge"})),
    )
    return {host.name: host for host in some}


class MeshMachine(RuleBasedStateMachine):
    """A history of submissions, executions, losses, restarts and changes of the leader."""

    @initialize()
    def begin(self) -> None:
        self.simulation = DispatchSimulation(hosts())
        self.simulation.settle(1)

    def host(self, pick: int) -> Host:
        return list(self.simulation.hosts.values())[pick % len(self.simulation.hosts)]

    # ---- clients and planner -----------------------------------------------------------------------------------

    @rule(drafts=st.lists(strategies.drafts, min_size=1, max_size=5))
    def submit(self, drafts: list[dict[str, Any]]) -> None:
        for draft in drafts:
            self.submit_one(draft)

    def submit_one(self, draft: dict[str, Any]) -> None:
        self.simulation.submit(self.request(draft))

    def request(self, draft: dict[str, Any]) -> Request:
        now, number = self.simulation.now, len(self.simulation.requests)
        within = draft["start_within_s"]
        return Request(
            id=f"r{number}",
            tenant=draft["tenant"],
            task="t",
            batch=draft["batch"],
            arrival=(round(now * 1000), number),
            stages=tuple(replace(stage, name=f"s{at}") for at, stage in enumerate(draft["stages"])),
            deadline_s=now + draft["budget_s"],
            start_by_s=None if within is None else now + within,
            priority=draft["priority"],
        )

    @rule(draft=strategies.drafts, accepted=st.booleans(), at_once=st.booleans())
    def submit_locally(self, draft: dict[str, Any], accepted: bool, at_once: bool) -> None:
        """The leader decides before the journal. `at_once`: the caller goes before anything is written."""
        simulation = self.simulation
        plain = tuple(replace(stage, quotas={}) for stage in draft["stages"])
        request = self.request({**draft, "batch": "", "stages": plain})
        before, written = simulation.seen(), len(simulation.writes)
        simulation.submit_locally(request, accepted=accepted)
        if at_once and request.id in simulation.local:
            alone = len(simulation.writes) == written + 1
            simulation.withdraw(request.id)
            if alone and len(simulation.writes) == written:
                assert simulation.seen() == before, "it leaves a trace, though nothing followed from it"

    @rule(drafts=st.lists(strategies.acts, min_size=1, max_size=4))
    def act(self, drafts: list[dict[str, Any]]) -> None:
        simulation = self.simulation
        for draft in drafts:
            now, name = simulation.now, f"r{len(simulation.requests)}"
            arrival, deadline_s = (round(now * 1000), len(simulation.requests)), now + draft["budget_s"]
            stages = (replace(draft["work"], name="s0", quotas=draft["quotas"]),)
            priority = simulation.priorities.get(draft["need"].trajectory, 0.0)
            request = Request(name, "ada", "t", "", arrival, stages, deadline_s, need=draft["need"])
            simulation.submit(replace(request, trajectory_priority=priority))

    @rule(
        concurrency=st.none() | st.sampled_from([0.5, 1.0, 3.0]),
        weights=st.sampled_from([{}, {"ada": 3.0, "bob": 0.5}]),
    )
    def set_quota(self, concurrency: float | None, weights: dict[str, float]) -> None:
        limits = None if concurrency is None else QuotaLimits((concurrency,), weights=weights)
        self.simulation.quotas.set("changing", limits)
        self.simulation.do(self.simulation.leader.handle(self.simulation.now, QuotaSet("changing", limits)))

    @rule(
        answer=st.sampled_from(get_args(UpstreamAnswer)),
        asked_s=st.sampled_from([0.0, 0.0, 2.0, 30.0]),
        top_up=st.booleans(),
    )
    def providers_answer(self, answer: UpstreamAnswer, asked_s: float, top_up: bool) -> None:
        """From now on, calls of providers are answered so. `top_up`: an operator sets a quota again, before."""
        simulation = self.simulation
        simulation.answer, simulation.asked_s = answer, asked_s
        if top_up:
            limits = simulation.quotas.limits["search"]
            simulation.do(simulation.leader.handle(simulation.now, QuotaSet("search", limits, simulation.now)))

    @rule(need=st.sampled_from(strategies.ENVIRONMENTS))
    def close(self, need: EnvironmentNeed) -> None:
        self.simulation.close(need.trajectory)

    @precondition(lambda self: any(host.environments for host in self.simulation.hosts.values()))
    @rule(pick=picks, ended=st.sampled_from(["expired", "lost"]))
    def environment_ends(self, pick: int, ended: TrajectoryEnd) -> None:
        standing = [(host, name) for host in self.simulation.hosts.values() if host.alive for name in host.environments]
        if standing:
            host, name = standing[pick % len(standing)]
            self.simulation.end_environment(host, name, ended)

    @precondition(lambda self: any(host.runs for host in self.simulation.hosts.values()))
    @rule(pick=picks, status=st.sampled_from(["lost", "refused", "postponed"]))
    def environment_is_not_made(self, pick: int, status: ExecutionStatus) -> None:
        making = [
            (host, run) for host in self.simulation.hosts.values() for run in host.runs.values() if run.grant.begins
        ]
        if making:
            host, run = making[pick % len(making)]
            self.simulation.end(host, run, "cancelled" if run.revoked else status, exists=False)

    @precondition(lambda self: self.simulation.journal)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        name = list(self.simulation.journal)[pick % len(self.simulation.journal)]
        self.simulation.cancels.add(name)
        self.simulation.do(self.simulation.leader.handle(self.simulation.now, ActionCancelled(name, "not wanted")))

    @rule(batch=st.sampled_from(["b1", "b2"]))
    def cancel_batch(self, batch: str) -> None:
        simulation = self.simulation
        members = {name for name, request in simulation.journal.items() if request.batch == batch}
        simulation.cancels |= members
        before = len(simulation.writes)
        simulation.do(simulation.leader.handle(simulation.now, BatchCancelled(batch, "not wanted")))
        granted = {command.action for _, command in simulation.writes[before:] if isinstance(command, Grant)}
        assert granted.isdisjoint(members), "what is being cancelled is not granted on the way"

    @rule(need=st.sampled_from(strategies.ENVIRONMENTS), priority=st.sampled_from([-10.0, 0.0, 2.0]))
    def prioritize(self, need: EnvironmentNeed, priority: float) -> None:
        self.simulation.prioritize(need.trajectory, priority)

    @rule(pool=st.sampled_from(POOLS), units=st.integers(0, 9))
    def target(self, pool: str, units: int) -> None:
        self.simulation.do(self.simulation.leader.handle(self.simulation.now, TargetReceived(pool, units)))

    @rule(planned=st.booleans())
    def planner(self, planned: bool) -> None:
        self.simulation.planned = planned
        self.simulation.do(self.simulation.leader.handle(self.simulation.now, PlannerChecked(planned)))

    @rule(batch=st.sampled_from(["b1", "b2"]), ahead_s=st.floats(0, 100))
    def estimate(self, batch: str, ahead_s: float) -> None:
        self.simulation.leader.handle(self.simulation.now, EstimateReceived(batch, self.simulation.now + ahead_s))

    # ---- hosts -------------------------------------------------------------------------------------------------

    @rule(pick=picks, most=st.integers(1, 6))
    def deliver(self, pick: int, most: int) -> None:
        self.simulation.deliver(self.host(pick), most)

    @rule()
    def grants_arrive(self) -> None:
        self.simulation.write(len(self.simulation.writes))
        for host in self.simulation.hosts.values():
            self.simulation.deliver(host, len(host.inbox))

    @rule(read_later=st.booleans())
    def work_goes_well(self, read_later: bool) -> None:
        """All hosts execute what they have read, and the leader reads the outcomes, at once or later."""
        self.grants_arrive()
        for host in self.simulation.hosts.values():
            for run in list(host.runs.values()):
                if run.parked and not run.revoked:
                    self.simulation.ask_to_resume(run)
                    continue
                self.simulation.end(host, run, "cancelled" if run.revoked else "ok", None if run.revoked else True)
        if not read_later:
            self.simulation.lead_reads(len(self.simulation.outcomes))

    @precondition(lambda self: any(host.runs for host in self.simulation.hosts.values()))
    @rule(ends=st.lists(st.tuples(picks, endings), min_size=1, max_size=4))
    def end(self, ends: list[tuple[int, tuple[ExecutionStatus, bool | None]]]) -> None:
        for pick, (status, passed) in ends:
            runs = [(host, run) for host in self.simulation.hosts.values() for run in host.runs.values()]
            if runs:
                host, run = runs[pick % len(runs)]
                if run.parked and status != "lost" and not run.revoked:
                    continue  # a frozen process reaches no verdict
                status = "lost" if run.parked else status
                killed = run.revoked and status not in ("ok", "timeout")
                self.simulation.end(host, run, "cancelled" if killed else status, passed)

    @precondition(lambda self: any(host.runs for host in self.simulation.hosts.values()))
    @rule(picks=st.lists(picks, min_size=1, max_size=3), leader=st.booleans())
    def park(self, picks: list[int], leader: bool) -> None:
        """Attempts are parked, by their host itself or because the leader was asked."""
        for pick in picks:
            runs = [(host, run) for host in self.simulation.hosts.values() for run in host.runs.values()]
            if runs:
                host, run = runs[pick % len(runs)]
                action, attempt = run.grant.action, run.grant.attempt
                if leader:
                    asked = (AttemptStarted(action, attempt), ParkRequested(action))
                    self.simulation.do(self.simulation.leader.handle(self.simulation.now, *asked))
                else:
                    self.simulation.park(host, run, attempt)

    @precondition(lambda self: any(run.parked for host in self.simulation.hosts.values() for run in host.runs.values()))
    @rule(pick=picks)
    def resume(self, pick: int) -> None:
        parked = [run for host in self.simulation.hosts.values() for run in host.runs.values() if run.parked]
        self.simulation.ask_to_resume(parked[pick % len(parked)])

    @rule(pick=picks, orderly=st.booleans(), returns=st.booleans(), survive=st.booleans())
    def stop_host(self, pick: int, orderly: bool, returns: bool, survive: bool) -> None:
        self.simulation.stop(self.host(pick), orderly=orderly)
        if returns:
            self.simulation.start(self.host(pick), survive=survive)

    @precondition(lambda self: not all(host.alive for host in self.simulation.hosts.values()))
    @rule()
    def start_hosts(self) -> None:
        for host in self.simulation.hosts.values():
            if not host.alive:
                self.simulation.start(host)

    @rule(pick=picks)
    def cut_off_or_rejoin(self, pick: int) -> None:
        self.host(pick).reachable ^= True
        self.simulation.cut.add(self.host(pick).name)

    @rule(pick=picks)
    def started(self, pick: int) -> None:
        for run in self.host(pick).runs.values():
            self.simulation.leader.handle(self.simulation.now, AttemptStarted(run.grant.action, run.grant.attempt))

    # ---- leader ------------------------------------------------------------------------------------------------

    @rule(most=st.integers(1, 6))
    def read(self, most: int) -> None:
        self.simulation.lead_reads(most)

    @rule(most=st.sampled_from([1, 4, 100]))
    def write(self, most: int) -> None:
        self.simulation.write(most)

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0, 20.0]))
    def pass_time(self, seconds: float) -> None:
        self.simulation.pass_time(seconds)

    @rule()
    def handle_together_or_apart(self) -> None:
        self.simulation.together ^= True

    @rule()
    def take_over(self) -> None:
        self.simulation.take_over()

    @rule()
    def tear(self) -> None:
        self.simulation.tear()

    @precondition(lambda self: self.simulation.read < len(self.simulation.outcomes))
    @rule(pick=picks)
    def trim(self, pick: int) -> None:
        """An outcome is trimmed from the stream before the leader has read it."""
        unread = len(self.simulation.outcomes) - self.simulation.read
        del self.simulation.outcomes[self.simulation.read + pick % unread]

    @rule()
    def a_quiet_moment(self) -> None:
        """Everything under way arrives."""
        self.simulation.settle(1)

    # ---- laws --------------------------------------------------------------------------------------------------

    @invariant()
    def all_laws_hold(self) -> None:
        self.simulation.leader.check()
        self.simulation.check_withdrawn()
        self.simulation.check_shares()
        self.simulation.check_backlog()
        self.simulation.check_snapshots()
        self.simulation.check_quotas()

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.quiesce()


TestMesh = MeshMachine.TestCase
TestMesh.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
