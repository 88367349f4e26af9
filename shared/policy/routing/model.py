"""Values of the router's policy: workers, model calls, stimuli and commands.

The leader of the routers has the one `Router` (ADR 0063). Each replica reports the calls of its clients and executes
the commands about them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

WorkerState = Literal["ready", "probing", "open", "draining", "failed"]
"""`ready`: it gets calls. `probing`: half-open, one call at a time tests it. `open`: its circuit breaker is open.
`draining`: it finishes its calls and gets no new ones. `failed`: it makes no progress."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One inference engine, as registered."""

    id: str
    models: frozenset[str] = frozenset()
    """Models that it serves; empty: any."""
    most_calls: int | None = None
    """Most calls in flight; None: no bound."""
    kv_tokens: int | None = None
    """Measured capacity of its KV cache, in tokens; None: not known, so it admits by `most_calls` alone."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request of a client to a model."""

    id: str
    replica: str
    """Replica whose client waits."""
    trajectory: str = ""
    """Calls of one trajectory stay on one worker. Empty: the call is alone."""
    tenant: str = ""
    group: str = ""
    """Trajectories with the same start (GRPO)."""
    model: str = ""
    """Empty: any."""
    priority: float = 0.0
    """Lower is earlier, as for actions."""
    context_tokens: int = 0
    """Estimate of its prompt."""
    most_tokens: int | None = None
    """Declared most tokens that its trajectory holds at its end."""
    deadline_s: float = float("inf")
    """Time at which its caller no longer waits."""
    avoid: frozenset[str] = frozenset()
    """Workers that failed it before its first byte."""
    tries: int = 0
    """Times that it was sent before."""


# ---- stimuli: each at a time, on the clock of the store ----------------------------------------------------------


class WorkerSet(NamedTuple):
    """A worker was registered, or has changed. A restarted worker is registered again and is ready."""

    worker: Worker
    restarted: bool = False


class WorkerDrained(NamedTuple):
    """A worker gets no new calls."""

    worker: str


class WorkerRemoved(NamedTuple):
    """A worker is gone. Its calls go on: their replicas have the connections."""

    worker: str


class CallArrived(NamedTuple):
    """A client's call waits for a worker. Repeated with `avoid` if a worker fails it before its first byte."""

    call: ModelCall


class CallProgressed(NamedTuple):
    """Bytes of an answer arrived since the last report."""

    call: str


class CallEnded(NamedTuple):
    """A call has ended, or its client no longer waits."""

    call: str
    outcome: Literal["ok", "aborted", "failed", "unreachable", "overloaded"]
    """`aborted`: by the client, also while it waited. `failed`: broken off after its first byte, or a 5xx status.
    `unreachable`: no byte of an answer. `overloaded`: the engine answered 503 or 429."""
    held_tokens: int | None = None
    """Tokens of its prompt and answer, if the engine reported them."""


class TrajectoryEnded(NamedTuple):
    """No call of this trajectory follows. Its pin and its reservation are free."""

    trajectory: str


class PinRestored(NamedTuple):
    """Pin from the store, before any call arrives."""

    trajectory: str
    worker: str
    at_s: float


class CallRestored(NamedTuple):
    """A call that another replica has sent under a former leader."""

    call: ModelCall
    worker: str


class CanaryAnswered(NamedTuple):
    """A canary call of a worker has ended."""

    worker: str
    ok: bool


class ReplicaLost(NamedTuple):
    """A replica has ended with its calls."""

    replica: str


class Ticked(NamedTuple):
    """Time has passed."""


Stimulus = (
    WorkerSet
    | WorkerDrained
    | WorkerRemoved
    | CallArrived
    | CallProgressed
    | CallEnded
    | TrajectoryEnded
    | PinRestored
    | CallRestored
    | CanaryAnswered
    | ReplicaLost
    | Ticked
)


# ---- commands ----------------------------------------------------------------------------------------------------


class Send(NamedTuple):
    """Send a call to a worker."""

    call: str
    replica: str
    worker: str


class Refuse(NamedTuple):
    """Answer a call with an error."""

    call: str
    replica: str
    code: Literal["no-worker", "no-model", "queue-full", "late"]
    """`no-worker`: none is ready. `no-model`: no worker serves its model. `queue-full`: too many calls wait. `late`:
    its deadline passed."""
    reason: str
    retry_after_s: float | None = None


class Recall(NamedTuple):
    """A call's worker makes no progress. If no byte of its answer has come, end it there and place it again."""

    call: str
    replica: str


class Pin(NamedTuple):
    """Store the worker of a trajectory; empty: it has none any more."""

    trajectory: str
    worker: str


class Canary(NamedTuple):
    """Call a worker for one token, outside of its queue."""

    worker: str


class WorkerChanged(NamedTuple):
    """The state of a worker has changed: for logs, metrics and people."""

    worker: str
    state: WorkerState
    reason: str


Command = Send | Refuse | Recall | Pin | Canary | WorkerChanged
