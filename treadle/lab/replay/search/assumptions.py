"""Values with their sources: statements of the paper, and assumptions where it states nothing.

The limits of the paper's services are not published, and neither is the duration of its steps. So no value here was
fitted to its 1.5 times; the sweeps of the evaluation show what the ratio depends on.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.lab.replay.tangram.assumptions import assumed


@dataclass(frozen=True)
class Provider:
    """One external service, as its operator has built it, and what it grants to one account."""

    per_s: float = assumed(100.0, "ours, unpublished: paid search APIs sell 50 to 300 calls a second; see the sweep")
    burst_s: float = assumed(1.0, "ours: the bucket holds the calls of one second")
    concurrency: int = assumed(400, "ours: four times the calls of one second; one more is refused")
    latency_s: float = assumed(1.0, "ours: median of an idle service")
    latency_spread: float = assumed(0.5, "ours: standard deviation of the logarithm")
    load_slope: float = assumed(1.0, "ours: at full concurrency calls take twice as long; grows with its square")
    refusal_s: float = assumed(0.1, "ours: until a 429 is there; Retry-After is in whole seconds; no token is taken")
    errors: float = assumed(0.01, "ours: calls that end with a 5xx after their latency")
    overload: float = assumed(
        3.0, "ours: times the bucket (or `per_s`, if more): of more calls in a second the rest hangs"
    )
    hangs: float = assumed(0.0, "ours: calls that hang without overload; 0 favours the baselines; see the variants")
    slow_every_s: float = assumed(300.0, "ours: mean time between two slow-downs of the service")
    slow_for_s: float = assumed(30.0, "ours: duration of a slow-down")
    slow_factor: float = assumed(2.0, "ours: in a slow-down latencies are longer and limits lower by this")

    @property
    def burst(self) -> float:
        """Tokens of a full bucket."""
        return max(1.0, self.per_s * self.burst_s)


@dataclass(frozen=True)
class Pages:
    """How the service for pages differs from the one for searches."""

    per_s: float = assumed(0.2, "ours: part of the searches' limits; a tenth of the calls go there")
    latency_s: float = assumed(3.0, "ours: median; §6.1 names PDF parsing")


@dataclass(frozen=True)
class TrainingStep:
    """The step of the trainer, the same under all systems."""

    batch: int = assumed(2048, "§6.1: trajectories of a step")
    think_s: float = assumed(6.1, "median generation of 25,014 recorded requests of agents")
    think_spread: float = assumed(0.87, "of the same: nine of ten are shorter than 18.6 s")
    judge_s: float = assumed(10.0, "ours: the reward; its own GPUs serve it under all systems (§6.1)")
    update_s: float = assumed(120.0, "ours, unpublished: training and the rest of a step; see the variants")
    most_starts: int = assumed(50, "ours: a trajectory that was lost so often is given up")


@dataclass(frozen=True)
class Client:
    """What a trajectory does by itself (both baselines)."""

    retries: int = assumed(3, "§6.1: of a call, after errors or a timeout")
    timeout_s: float = assumed(600.0, "§6.1")
    backoff_s: float = assumed(1.0, "ours, unpublished: before the first retry, doubled for each one after it")
    jitter: float = assumed(0.5, "ours: part of the backoff by which it varies")
    heeds: int = assumed(0, "ours: 1 waits for Retry-After; see the variants")
    processes: int = assumed(8, "verl's default number of agent workers: each has a limiter of its own")
    trainers: int = assumed(
        1, "ours: that share the account, all but one in another phase; they have parts of a 1/N split"
    )


@dataclass(frozen=True)
class Ours:
    """Treadle's side."""

    network_s: float = assumed(0.02, "ours: least time from a grant to the service")
    jitter_s: float = assumed(0.05, "ours: most that is added to it, evenly")
    answer_s: float = assumed(0.01, "ours: overhead of an action, from the service's answer to the trajectory")
    burst: float = assumed(0.9, "ours: of the service's bucket, so that the jitter brings no two bursts together")
    concurrency: float = assumed(1.0, "ours: of the service's own limit")
    attempts: int = assumed(4, "§6.1: as many as the baseline's; those that were pushed back do not count")
    timeout_s: float = assumed(600.0, "§6.1: as the baseline's")
    budget_s: float = assumed(7200.0, "ours: actions wait so long at most")


PROVIDER = Provider()
PAGES = Pages()
TRAINER = TrainingStep()
CLIENT = Client()
OURS = Ours()
