"""Random histories of model calls on GPUs: the dispatcher keeps its laws, and everything that can start does."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest
from msgspec.structs import replace

from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.service_stimuli import ServicesReported
from shared.policy.dispatch.stimuli import (
    ActionCancelled,
    ActionRestored,
    AttemptsEnded,
    BatchCancelled,
    EstimateReceived,
    InventoryReported,
    NodeJoined,
    NodeLost,
    NodeSeen,
    PlannerChecked,
    RequestsSubmitted,
    Stimulus,
    TargetReceived,
    TickPassed,
    WeightsReceived,
)
from shared.policy.elastic.scheduling import ElasticRules, Rule
from shared.policy.model.chunks import SIZES, Chunk, ServedModel
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import AnswerAction, AskInventory, Command, Grant, Request, Revoke, Work
from shared.policy.model.quotas import QuotaLimits, Rate
from shared.policy.model.reports import Ended, HeldGrant
from shared.policy.model.results import AttemptResult
from shared.policy.resources.chunks import GPUS

POOL: Final = "gpus@cpu"
CAPACITIES: Final = (1, 2, 3, 4, 8, 16)
SERVICES: Final = ("A", "B", "C", "D", "E")
TENANTS: Final = ("ada", "bob", "cyd")
BATCHES: Final = ("", "b1", "b2")
RULES: Final[tuple[Rule | None, ...]] = (None, "paper", "priced", "priced")
QUOTAS: Final = {
    "search": (QuotaLimits((2.0,)), QuotaLimits((4.0,), (Rate(4.0, 5.0),)), None),
    "shared": (QuotaLimits((3.0,), weights={"ada": 2.0}), QuotaLimits((2.0,), (Rate(6.0, 4.0),), {"bob": 3.0})),
}
SPEEDS: Final = (Elasticity("amdahl", serial=0.1), Elasticity("amdahl", serial=1.0), Elasticity("power", exponent=1.0))
DEVICE_GB: Final = 80.0
FOREVER_S: Final = 1e7


@dataclass
class Host:
    """A node: what it reports, and what it executes."""

    name: str
    gpus: int
    cores: int
    incarnation: int = 1
    kinds: frozenset[str] = frozenset({"run", "judge"})
    services: dict[str, ServedModel] = field(default_factory=dict)
    bad: tuple[int, ...] = ()
    released: tuple[int, ...] = ()
    reported: ServicesReported | None = None
    """Its newest report that the dispatcher has."""
    running: dict[str, Grant] = field(default_factory=dict)
    ends_s: dict[str, float] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)
    asked: int = 0
    """Inventories that it has not answered."""
    joined: bool = False
    """It has sent a hello, and was not lost since."""
    misreports: bool = False
    """Its inventory was false once, so GPUs of others may have been taken for an entry."""

    @property
    def hello(self) -> NodeJoined:
        capacity = {"gpus": self.gpus, "cores": self.cores} if self.gpus else {"cores": self.cores}
        return NodeJoined(self.name, str(self.incarnation), "cpu", capacity, self.kinds)

    @property
    def report(self) -> ServicesReported:
        memory = (DEVICE_GB,) * self.gpus
        return ServicesReported(
            self.name, str(self.incarnation), "gpus", dict(self.services), memory, self.bad, self.released
        )


@dataclass
class History:
    """A dispatcher, its nodes, and random events."""

    rng: Random
    dispatcher: Dispatcher = field(init=False)
    config: DispatchConfig = field(init=False)
    now: float = 1000.0
    hosts: dict[str, Host] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    """Unanswered ones."""
    newest: dict[str, Grant] = field(default_factory=dict)
    """Newest grant of each."""
    targets: dict[str, TargetReceived] = field(default_factory=dict)
    weights: WeightsReceived = field(default_factory=lambda: WeightsReceived({}))
    limits: dict[str, QuotaSet] = field(default_factory=dict)
    services_of: dict[str, str] = field(default_factory=dict)
    misplaced: set[str] = field(default_factory=set)
    """Actions of which a node has reported other GPUs than it was granted."""
    made: int = 0

    def __post_init__(self) -> None:
        rng = self.rng
        self.config = DispatchConfig(
            swap_wait_s=rng.choice([0.0, 1.0, 5.0, 60.0, 1000.0]), elastic=ElasticRules(rule=rng.choice(RULES))
        )
        self.dispatcher = Dispatcher(self.config, specs={"gpus": GPUS})
        for name, choices in QUOTAS.items():
            self.limit(name, choices[0])
        for number in range(rng.choice([1, 1, 2, 3, 5])):
            host = Host(f"n{number}", rng.choice(CAPACITIES), rng.choice([0, 2, 4]))
            self.hosts[host.name] = host
            self.change_services(host)
            self.join(host)

    # ---- what the dispatcher is given, and what follows --------------------------------------------------------------

    def give(self, *given: Stimulus) -> list[Command]:
        commands = self.dispatcher.handle(self.now, *given)
        self.dispatcher.check()
        for command in commands:
            if isinstance(command, Grant):
                self.granted(command)
            elif isinstance(command, AnswerAction):
                del self.requests[command.action]
            elif isinstance(command, AskInventory):
                self.hosts[command.node].asked += 1
            elif isinstance(command, Revoke):
                host = self.hosts[command.node]
                if command.action in host.running:
                    host.revoked.add(command.action)
        return commands

    def granted(self, grant: Grant) -> None:
        host, request = self.hosts[grant.node], self.requests[grant.action]
        work = request.stages[grant.stage]
        assert grant.action not in host.running, f"{grant.action} twice"
        self.check_chunk(host, work, grant)
        host.running[grant.action] = self.newest[grant.action] = grant
        units = grant.units.get("gpus", 0)
        single_s = self.rng.choice([0.1, 1.0, 10.0]) if work.duration_s is None else work.duration_s
        lasts_s = single_s if work.elasticity is None else work.elasticity.duration(single_s, units)
        one = host.services.get(work.service)
        restore_s = 0.0 if one is None else one.restore_s.get(units, 0.0)
        host.ends_s[grant.action] = self.now + lasts_s * self.rng.choice([0.5, 1.0, 1.0, 3.0]) + restore_s

    def check_chunk(self, host: Host, work: Work, grant: Grant) -> None:
        """A grant's chunk matches its units, can be used, and is shared with holders of its service only."""
        units = grant.units.get("gpus", 0)
        assert len(grant.numbers) == units, grant
        assert host.joined
        assert work.kind in host.kinds
        if not units:
            return
        assert units in (work.amounts or (work.units["gpus"],))
        chunk, away = Chunk(grant.numbers[0], units), set[int]()
        assert tuple(chunk.gpus) == grant.numbers
        assert not chunk.first % units
        assert chunk.gpus[-1] < host.gpus
        reported = host.reported
        if reported is not None:
            away = {*reported.bad, *reported.released}
        assert away.isdisjoint(grant.numbers), "bad or released"
        most = 1
        if work.service:
            assert reported is not None, "served"
            assert work.service in reported.services, "served"
            one = reported.services[work.service]
            assert units in one.degrees
            assert chunk not in one.unusable
            most = one.concurrency
        together = 1
        for name, other in host.running.items():
            if set(other.numbers).isdisjoint(grant.numbers) or name not in self.newest or name in self.misplaced:
                continue
            if host.misreports and not self.dispatcher.cluster.nodes.present[host.name].numbers("gpus", name):
                continue
            service = self.services_of.get(name, "")
            assert (*other.numbers, service) == (*grant.numbers, work.service or "alone"), "others have it"
            together += 1
        assert together <= max(1, most), "concurrency"

    # ---- events ------------------------------------------------------------------------------------------------------

    def join(self, host: Host) -> None:
        if not host.joined:
            host.joined, host.asked = True, 0
        order: list[Stimulus] = [host.hello]
        if self.rng.random() < 0.8:
            order.append(host.report)
            host.reported = host.report
        self.give(*order)

    def leave(self, host: Host, *, keeps: bool) -> None:
        """A node is lost; `keeps`: it still executes, and comes back in the same incarnation."""
        host.joined, host.reported, host.asked = False, None, 0
        if not keeps:
            host.running.clear()
            host.ends_s.clear()
            host.revoked.clear()
            host.incarnation += 1
            if self.rng.random() < 0.3:
                host.gpus = self.rng.choice(CAPACITIES)
                host.bad = host.released = ()
                self.change_services(host)
        self.give(NodeLost(host.name, "lost"))

    def answer_inventory(self, host: Host, *, honest: bool = True) -> None:
        if not host.asked or not host.joined:
            return
        host.asked -= 1
        held, rng = dict[str, HeldGrant](), self.rng
        free = host.gpus - sum(grant.units.get("gpus", 0) for grant in host.running.values())
        for name, one in host.running.items():
            numbers = one.numbers
            if not honest and free >= 0 and rng.random() < 0.3:
                host.misreports = True
                self.misplaced.add(name)
                numbers = rng.choice([(), tuple(range(len(numbers))), tuple(reversed(numbers)), (host.gpus,), (0, 2)])
            held[name] = HeldGrant(
                one.stage, one.attempt, 0.5, one.units, service=self.services_of.get(name, ""), numbers=numbers
            )
        if not honest and free > 0 and rng.random() < 0.5:
            host.misreports = True
            self.made += 1
            units = rng.randint(1, free)
            numbers = tuple(rng.sample(range(host.gpus), units)) if rng.random() < 0.7 else tuple(range(units))
            name = f"x{self.made}"
            held[name] = HeldGrant(0, 1, 1.0, {"gpus": units}, service=rng.choice(["", "A", "B", "Z"]), numbers=numbers)
            host.running[name] = Grant(name, host.name, 1, 0, {"gpus": units}, 1.0)
            host.ends_s[name] = self.now + 1.0
        report: list[Stimulus] = [InventoryReported(host.name, str(host.incarnation), held)]
        if rng.random() < 0.5:
            report.insert(rng.randint(0, 1), host.report)
            host.reported = host.report
        self.give(*report)

    def change_services(self, host: Host) -> None:
        rng = self.rng
        host.services = {}
        for name in SERVICES:
            if rng.random() < 0.8:
                host.services[name] = self.service(host)

    def service(self, host: Host) -> ServedModel:
        rng = self.rng
        degrees = tuple(size for size in SIZES if rng.random() < 0.7) or (1,)
        restore_s = rng.choice([0.0, 0.5, 5.0, 40.0])
        chunks = [Chunk(first, size) for size in degrees for first in range(0, host.gpus - size + 1, size)]
        return ServedModel(
            degrees,
            rng.choice([1, 1, 2, 8, 12]),
            rng.choice([10.0, 30.0, 60.0, 80.0, 100.0]),
            frozenset(rng.sample(chunks, min(len(chunks), rng.choice([0, 0, 1, 3])))),
            frozenset(rng.sample(chunks, min(len(chunks), rng.choice([0, 0, 0, 1, 2])))),
            restore_s={size: restore_s for size in degrees if rng.random() < 0.8},
            evict_s={size: restore_s / 2 for size in degrees if rng.random() < 0.5},
            asleep=dict.fromkeys(rng.sample(chunks, min(len(chunks), rng.choice([0, 0, 1, 3]))), restore_s / 4),
        )

    def report(self, host: Host) -> None:
        rng = self.rng
        if rng.random() < 0.5:
            self.change_services(host)
        elif host.services and rng.random() < 0.7:
            name = rng.choice(sorted(host.services))
            if rng.random() < 0.3:
                del host.services[name]
            else:
                host.services[name] = self.service(host)
        if rng.random() < 0.3:
            host.bad = tuple(rng.sample(range(host.gpus), rng.randint(0, min(2, host.gpus))))
        if rng.random() < 0.3:
            host.released = tuple(rng.sample(range(host.gpus), rng.randint(0, host.gpus)))
        if host.joined:
            host.reported = host.report
            self.give(host.report)

    def work(self) -> Work:
        rng = self.rng
        first = rng.choice([1, 1, 1, 2, 4, 8])
        units = {"gpus": first}
        if rng.random() < 0.15:
            units["cores"] = rng.choice([1, 2])
        service = rng.choice([*SERVICES, ""])
        lasts_s = rng.choice([0.1, 1.0, 4.0, 30.0, None])
        made = Work("w", rng.choice(["run", "run", "run", "judge"]), POOL, units, 100.0, rng.random() < 0.9)
        made = replace(made, duration_s=lasts_s, service=service)
        if rng.random() < 0.7:
            amounts = (first, *(size for size in SIZES if size > first and rng.random() < 0.7))
            made = replace(made, amounts=amounts, elasticity=rng.choice(SPEEDS) if rng.random() < 0.9 else None)
        if rng.random() < 0.15:
            made = replace(made, quotas={name: 1.0 for name in QUOTAS if rng.random() < 0.6})
        return made

    def submit(self, count: int) -> None:
        rng, new = self.rng, list[Request]()
        shared = self.work()
        for _ in range(count):
            self.made += 1
            name, made = f"a{self.made}", shared if rng.random() < 0.5 else self.work()
            self.services_of[name] = made.service
            arrival = (round(self.now * 1000), self.made)
            within_s = rng.choice([2.0, 30.0, FOREVER_S, FOREVER_S, FOREVER_S])
            request = Request(
                name, rng.choice(TENANTS), "t", rng.choice(BATCHES), arrival, (made,), self.now + within_s,
                priority=rng.choice([0.0, 0.0, 1.0]),
            )  # fmt: skip
            self.requests[name] = request
            new.append(request)
        self.give(RequestsSubmitted(tuple(new)))

    def end(self, host: Host, name: str) -> None:
        grant = host.running.pop(name)
        del host.ends_s[name]
        revoked = name in host.revoked
        host.revoked.discard(name)
        if revoked or name not in self.services_of:
            result = AttemptResult("cancelled")
        else:
            result = self.rng.choice(
                [
                    *[AttemptResult("ok", True)] * 20,
                    AttemptResult("lost"),
                    AttemptResult("lost", retry_in_s=1.5),
                    AttemptResult("timeout"),
                ]
            )
        self.give(AttemptsEnded((Ended(name, host.name, grant.attempt, grant.stage, result, 0.0, 1.0, grant.units),)))

    def limit(self, name: str, limits: QuotaLimits | None) -> None:
        self.limits[name] = QuotaSet(name, limits)
        self.give(self.limits[name])

    def restart(self) -> None:
        """Another leader takes over."""
        self.dispatcher = Dispatcher(self.config, specs={"gpus": GPUS})
        self.give(*self.limits.values(), self.weights, RequestsSubmitted(tuple(self.requests.values())))
        restored = []
        for name in self.requests:
            grant = self.newest.get(name)
            if grant is not None:
                node = grant.node if name in self.hosts[grant.node].running else self.rng.choice(["", grant.node])
                restored.append(ActionRestored(name, grant.stage, grant.attempt, (), node))
        self.give(*restored, *self.targets.values())
        for host in self.hosts.values():
            host.asked, host.reported, known = 0, None, host.joined
            host.joined = False
            if known:
                self.join(host)

    def running(self) -> list[tuple[Host, str]]:
        return [(host, name) for host in self.hosts.values() for name in host.running]

    def step(self) -> None:  # noqa: C901
        """One random event."""
        rng, event = self.rng, self.rng.random()
        self.now += rng.choice([0.0, 0.0, 0.01, 0.2, 1.0, 3.0])
        host = rng.choice(list(self.hosts.values()))
        if event < 0.28:
            self.submit(rng.choice([1, 1, 1, 2, 5, 12]))
        elif event < 0.62:
            if running := self.running():
                self.end(*rng.choice(running))
        elif event < 0.70:
            self.tick(rng.choice([0.2, 1.0, 6.0]))
        elif event < 0.80:
            self.report(host)
        elif event < 0.86:
            self.answer_inventory(host, honest=rng.random() < 0.7)
        elif event < 0.88:
            self.leave(host, keeps=rng.random() < 0.5)
        elif event < 0.91:
            if not host.joined or rng.random() < 0.2:
                self.join(host)
        elif event < 0.93:
            self.targets[POOL] = TargetReceived(POOL, rng.randrange(0, 20), rng.choice([1, 2, 4]))
            self.give(self.targets[POOL])
        elif event < 0.94:
            self.give(PlannerChecked(rng.random() < 0.5))
        elif event < 0.95:
            self.weights = WeightsReceived({name: rng.choice([0.5, 1.0, 7.0]) for name in TENANTS})
            self.give(self.weights)
        elif event < 0.97:
            if self.requests:
                self.give(ActionCancelled(rng.choice(list(self.requests)), "cancelled"))
        elif event < 0.98:
            self.give(EstimateReceived(rng.choice(BATCHES[1:]), self.now + rng.uniform(0.0, 100.0)))
        elif event < 0.985:
            name = rng.choice(list(QUOTAS))
            self.limit(name, rng.choice(QUOTAS[name]))
        elif event < 0.99:
            self.give(BatchCancelled(rng.choice(BATCHES[1:]), "cancelled"))
        else:
            self.restart()

    def tick(self, passed_s: float) -> None:
        self.now += passed_s
        seen = [NodeSeen(one.name, str(one.incarnation)) for one in self.hosts.values() if one.joined]
        self.give(*seen, TickPassed())

    # ---- the end -----------------------------------------------------------------------------------------------------

    def settle(self) -> None:  # noqa: C901
        """All nodes are back, and serve everything everywhere. Then everything must be granted and end."""
        rng = self.rng
        self.targets.clear()
        for name, choices in QUOTAS.items():
            self.limit(name, choices[0])
        self.weights = WeightsReceived({})
        if rng.random() < 0.5:
            self.restart()
        self.give(PlannerChecked(True), TargetReceived(POOL, 1000))
        for number, host in enumerate(self.hosts.values()):
            if not number and (host.gpus < 8 or host.cores < 2):
                if host.joined:
                    self.leave(host, keeps=False)
                host.gpus, host.cores = 16, 4
            host.bad = host.released = ()
            for name in SERVICES:
                made = self.service(host)
                host.services[name] = dataclasses.replace(
                    made, degrees=SIZES, unusable=frozenset(), resident=frozenset()
                )
            if not host.joined:
                self.join(host)
            while host.asked:
                self.answer_inventory(host)
            host.reported = host.report
            self.give(host.report)
        work_s = 1000.0
        for request in self.requests.values():
            work_s += 3 * request.stages[0].timeout_s + 60.0
        until_s = self.now + work_s + len(self.requests) * min(self.config.swap_wait_s, 60.0)
        quiet = 0
        while self.requests:
            due = min(
                ((host.ends_s[name], name, host.name) for host, name in self.running()),
                default=(math.inf, "", ""),
            )
            for host in self.hosts.values():
                while host.asked:
                    self.answer_inventory(host)
            if due[0] <= self.now + 0.5:
                self.now, quiet = max(self.now, due[0]), 0
                if due[1] in self.hosts[due[2]].running:
                    self.end(self.hosts[due[2]], due[1])
            else:
                quiet += not self.running()
                self.tick(0.5)
            assert quiet < 400, f"idle, and these wait: {self.waiting()}"
            assert self.now < until_s, f"these wait: {self.waiting()}"

    def waiting(self) -> object:
        queues = self.dispatcher.cluster.queues
        return [(name, one.work, one.request.tenant) for name, one in queues.queued.items()][:5]


@pytest.mark.parametrize("seed", [*range(8), 14, 32, 129, 1200])
def test_histories_keep_the_laws(seed: int) -> None:
    """In 14 and 32 calls also need cores; in 129 a head waits for a turn and, in its plan, for calls behind it; in 1200
    an old call has a place, and the only younger one that is planned with it has none.
    """
    history = History(Random(seed))
    for _ in range(120):
        history.step()
    history.settle()
    assert not history.requests
