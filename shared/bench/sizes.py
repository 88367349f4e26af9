"""How much is measured, and how long."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scaling:
    """Of the workload that the planner scales for: a minute of it."""

    tasks: int = 2
    batches: int = 4
    """Of each task. The first is the history of those after it."""
    requests: int = 96
    """Of a batch."""
    times: float = 45.0
    """So many times quicker than what DistRS publishes: a rollout and its rewards last some nine seconds."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a run of about three minutes (four and a half with peers) on two cores."""

    seconds: float = 4.0
    """Length of a round of load."""
    rounds: int = 3
    callers: int = 64
    """Callers of single actions, as the peers were measured with."""
    bulk: int = 20_000
    """Reward requests of a bulk batch: well beyond what a round of single actions completes."""
    program_callers: int = 32
    sleepers: int = 256
    sleep_waves: int = 5
    """One-second actions of each sleeper."""
    rest_s: float = 10.0
    settle_s: float = 3.0
    """Rest before resting is measured: interpreters and servers have their start-up work behind them."""
    history_rows: int = 102_400
    scaling: Scaling = Scaling()


QUICK = Sizes(
    seconds=1.5,
    rounds=1,
    bulk=5_000,
    sleep_waves=2,
    rest_s=3.0,
    settle_s=1.0,
    history_rows=20_480,
    scaling=Scaling(batches=2, requests=48, times=120.0),
)
"""About 45 seconds: enough to see that something became twice as slow, too little for a fine comparison."""
