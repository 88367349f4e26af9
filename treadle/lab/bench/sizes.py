"""Sizes and durations of the measurements."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScalingSizes:
    """Sizes of the scaling workload: about a minute."""

    tasks: int = 2
    batches: int = 4
    """Batches of each task. The first is the history of the others."""
    requests: int = 96
    """Requests of a batch."""
    times: float = 45.0
    """Speedup over the workload that DistRS publishes: a rollout and its rewards last some nine seconds."""


@dataclass(frozen=True, slots=True)
class EnvironmentSizes:
    """Sizes of the measurements in trajectories' environments."""

    actions: int = 200
    """Number of `true` in one environment."""
    environments: int = 24
    steps: int = 50
    """Actions of each of them."""
    trainers: int = 8
    turns: int = 8
    """Turns of each trainer, for the overhead."""
    idle: int = 200
    idle_s: float = 10.0
    starts: int = 1000
    """Environments requested at once."""
    container_starts: int = 100
    """The same with containers, which take an engine at least 0.15 s each."""


@dataclass(frozen=True, slots=True)
class DispatchSizes:
    """Sizes of the measurements of decisions."""

    nodes: tuple[int, ...] = (10, 100, 1000, 4000)
    mixed_nodes: tuple[int, ...] = (10, 100, 1000)
    """Nodes under elastic, large and short work and environments."""
    waiting: tuple[int, ...] = (1000, 100_000)
    tenants: tuple[int, ...] = (1, 100, 10_000)


@dataclass(frozen=True, slots=True)
class GpuSizes:
    """Sizes of the measurements of GPUs: about two minutes."""

    repeats: int = 7
    """Runs of the same decisions."""
    choices: int = 3000
    """Choices of a chunk on 40 GPUs."""
    large_choices: int = 500
    """The same on 1,280 GPUs."""
    evictions: int = 1500
    """Decisions about evictions on one node."""
    traces: int = 10
    """Random traces of swaps, of each sort."""
    swaps: int = 120
    """Calls that each load an engine."""
    swaps_s: float = 60.0
    """Time after which no more of them begin."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a run of about three minutes (four and a half with peers) on two cores."""

    seconds: float = 4.0
    """Length of a round of load."""
    rounds: int = 3
    kills: int = 8
    """Client programs that are killed while they hold leases, one each second."""
    callers: int = 64
    """Callers of single actions, as the peers were measured with."""
    bulk: int = 20_000
    """Reward requests of a bulk batch: well beyond what a round of single actions completes."""
    beside: int = 100_000
    """Lines of the bulk call beside which another tenant's single actions are measured."""
    program_callers: int = 32
    sleepers: int = 256
    sleep_waves: int = 5
    """One-second actions of each sleeper."""
    rest_s: float = 10.0
    settle_s: float = 3.0
    """Pause before the idle mesh is measured, so that start-up work is over."""
    history_rows: int = 102_400
    results: int = 100_000
    """Results that pass through a Valkey of 256 MiB; a million take some ten minutes."""
    queued: int = 200_000
    """Actions that wait when a leader is killed."""
    queued_batches: int = 100
    scaling: ScalingSizes = ScalingSizes()
    environment: EnvironmentSizes = EnvironmentSizes()
    dispatch: DispatchSizes = DispatchSizes()
    gpu: GpuSizes = GpuSizes()


QUICK = Sizes(
    seconds=1.5,
    rounds=1,
    kills=1,
    bulk=5_000,
    beside=25_000,
    sleep_waves=2,
    rest_s=3.0,
    settle_s=1.0,
    history_rows=20_480,
    results=5_000,
    queued=5_000,
    queued_batches=5,
    scaling=ScalingSizes(batches=2, requests=48, times=120.0),
    environment=EnvironmentSizes(
        actions=30, environments=4, steps=12, trainers=2, turns=3, idle=8, idle_s=2.0, starts=60, container_starts=8
    ),
    dispatch=DispatchSizes(nodes=(10, 100, 1000), mixed_nodes=(10, 100), waiting=(1000, 10_000)),
    gpu=GpuSizes(repeats=3, choices=500, large_choices=50, evictions=500, traces=2, swaps=3, swaps_s=10.0),
)
"""About 45 seconds: shows a slowdown by a factor of two, too short for a fine comparison."""
