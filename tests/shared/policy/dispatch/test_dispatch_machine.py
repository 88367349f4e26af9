"""The dispatcher under random failures of everything, checked by laws that need no knowledge of its internals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared.policy.model.formulation import EnvironmentNeed, Grant, Request, TrajectoryEnd
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


class Mesh(RuleBasedStateMachine):
    """A history of submissions, executions, losses, restarts and changes of the leader."""

    @initialize()
    def begin(self) -> None:
        self.world = DispatchSimulation(hosts())
        self.world.settle(1)

    def host(self, pick: int) -> Host:
        return list(self.world.hosts.values())[pick % len(self.world.hosts)]

    # ---- clients and planner -----------------------------------------------------------------------------------

    @rule(drafts=st.lists(strategies.drafts, min_size=1, max_size=5))
    def submit(self, drafts: list[dict[str, Any]]) -> None:
        for draft in drafts:
            self.submit_one(draft)

    def submit_one(self, draft: dict[str, Any]) -> None:
        world = self.world
        now, name = world.now, f"r{len(world.requests)}"
        within = draft["start_within_s"]
        world.submit(
            Request(
                id=name,
                tenant=draft["tenant"],
                task="t",
                batch=draft["batch"],
                arrival=(round(now * 1000), len(world.requests)),
                stages=tuple(replace(stage, name=f"s{at}") for at, stage in enumerate(draft["stages"])),
                deadline_s=now + draft["budget_s"],
                start_by_s=None if within is None else now + within,
                priority=draft["priority"],
            )
        )

    @rule(drafts=st.lists(strategies.acts, min_size=1, max_size=4))
    def act(self, drafts: list[dict[str, Any]]) -> None:
        world = self.world
        for draft in drafts:
            now, name = world.now, f"r{len(world.requests)}"
            arrival, deadline_s = (round(now * 1000), len(world.requests)), now + draft["budget_s"]
            stages = (replace(draft["work"], name="s0"),)
            world.submit(Request(name, "ada", "t", "", arrival, stages, deadline_s, need=draft["need"]))

    @rule(need=st.sampled_from(strategies.ENVIRONMENTS))
    def close(self, need: EnvironmentNeed) -> None:
        self.world.close(need.trajectory)

    @precondition(lambda self: any(host.environments for host in self.world.hosts.values()))
    @rule(pick=picks, ended=st.sampled_from(["expired", "lost"]))
    def environment_ends(self, pick: int, ended: TrajectoryEnd) -> None:
        standing = [(host, name) for host in self.world.hosts.values() if host.alive for name in host.environments]
        if standing:
            host, name = standing[pick % len(standing)]
            self.world.end_environment(host, name, ended)

    @precondition(lambda self: any(host.runs for host in self.world.hosts.values()))
    @rule(pick=picks, status=st.sampled_from(["lost", "refused", "postponed"]))
    def environment_is_not_made(self, pick: int, status: str) -> None:
        making = [(host, run) for host in self.world.hosts.values() for run in host.runs.values() if run.grant.begins]
        if making:
            host, run = making[pick % len(making)]
            self.world.end(host, run, "cancelled" if run.revoked else status, exists=False)

    @precondition(lambda self: self.world.journal)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        name = list(self.world.journal)[pick % len(self.world.journal)]
        self.world.cancels.add(name)
        self.world.do(self.world.leader.cancelled(self.world.now, name, "not wanted"))

    @rule(batch=st.sampled_from(["b1", "b2"]))
    def cancel_batch(self, batch: str) -> None:
        world = self.world
        members = {name for name, request in world.journal.items() if request.batch == batch}
        world.cancels |= members
        before = len(world.writes)
        world.do(world.leader.batch_cancelled(world.now, batch, "not wanted"))
        granted = {command.action for _, command in world.writes[before:] if isinstance(command, Grant)}
        assert granted.isdisjoint(members), "what is being cancelled is not granted on the way"

    @rule(pool=st.sampled_from(POOLS), units=st.integers(0, 9))
    def target(self, pool: str, units: int) -> None:
        self.world.do(self.world.leader.targeted(self.world.now, pool, units))

    @rule(planned=st.booleans())
    def planner(self, planned: bool) -> None:
        self.world.planned = planned
        self.world.do(self.world.leader.planned(self.world.now, planned))

    @rule(batch=st.sampled_from(["b1", "b2"]), ahead_s=st.floats(0, 100))
    def estimate(self, batch: str, ahead_s: float) -> None:
        self.world.leader.completion_expected(batch, self.world.now + ahead_s)

    # ---- hosts -------------------------------------------------------------------------------------------------

    @rule(pick=picks, most=st.integers(1, 6))
    def deliver(self, pick: int, most: int) -> None:
        self.world.deliver(self.host(pick), most)

    @rule()
    def grants_arrive(self) -> None:
        self.world.write(len(self.world.writes))
        for host in self.world.hosts.values():
            self.world.deliver(host, len(host.inbox))

    @rule(read_later=st.booleans())
    def work_goes_well(self, read_later: bool) -> None:
        """All hosts execute what they have read, and the leader reads the outcomes, at once or later."""
        self.grants_arrive()
        for host in self.world.hosts.values():
            for run in list(host.runs.values()):
                self.world.end(host, run, "cancelled" if run.revoked else "ok", None if run.revoked else True)
        if not read_later:
            self.world.lead_reads(len(self.world.outcomes))

    @precondition(lambda self: any(host.runs for host in self.world.hosts.values()))
    @rule(ends=st.lists(st.tuples(picks, endings), min_size=1, max_size=4))
    def end(self, ends: list[tuple[int, tuple[str, bool | None]]]) -> None:
        for pick, (status, passed) in ends:
            runs = [(host, run) for host in self.world.hosts.values() for run in host.runs.values()]
            if runs:
                host, run = runs[pick % len(runs)]
                killed = run.revoked and status not in ("ok", "timeout")
                self.world.end(host, run, "cancelled" if killed else status, passed)

    @rule(pick=picks, orderly=st.booleans(), returns=st.booleans(), survive=st.booleans())
    def stop_host(self, pick: int, orderly: bool, returns: bool, survive: bool) -> None:
        self.world.stop(self.host(pick), orderly=orderly)
        if returns:
            self.world.start(self.host(pick), survive=survive)

    @precondition(lambda self: not all(host.alive for host in self.world.hosts.values()))
    @rule()
    def start_hosts(self) -> None:
        for host in self.world.hosts.values():
            if not host.alive:
                self.world.start(host)

    @rule(pick=picks)
    def cut_off_or_rejoin(self, pick: int) -> None:
        self.host(pick).reachable ^= True

    @rule(pick=picks)
    def started(self, pick: int) -> None:
        for run in self.host(pick).runs.values():
            self.world.leader.started(self.world.now, run.grant.action, run.grant.attempt)

    # ---- leader ------------------------------------------------------------------------------------------------

    @rule(most=st.integers(1, 6))
    def read(self, most: int) -> None:
        self.world.lead_reads(most)

    @rule(most=st.sampled_from([1, 4, 100]))
    def write(self, most: int) -> None:
        self.world.write(most)

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0, 20.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule()
    def take_over(self) -> None:
        self.world.take_over()

    @rule()
    def tear(self) -> None:
        self.world.tear()

    @precondition(lambda self: self.world.read < len(self.world.outcomes))
    @rule(pick=picks)
    def trim(self, pick: int) -> None:
        """An outcome is trimmed from the stream before the leader has read it."""
        unread = len(self.world.outcomes) - self.world.read
        del self.world.outcomes[self.world.read + pick % unread]

    @rule()
    def a_quiet_moment(self) -> None:
        """Everything under way arrives."""
        self.world.settle(1)

    # ---- laws --------------------------------------------------------------------------------------------------

    @invariant()
    def the_books_are_in_order(self) -> None:
        self.world.leader.check()
        self.world.check_shares()
        self.world.check_backlog()
        self.world.check_snapshots()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.quiesce()


TestMesh = Mesh.TestCase
TestMesh.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
