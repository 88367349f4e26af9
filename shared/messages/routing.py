"""Inference workers as registered, and the messages between replicas of the trajectory router (ADR 0063).

All replicas read one stream. The leader's messages name the replica that they are for.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from shared.messages.base import Message, Topic

Engine = Literal["vllm", "sglang", "llamacpp", "openai"]
"""Dialect of an engine. `openai`: any other server with OpenAI's routes."""
Outcome = Literal["ok", "aborted", "failed", "unreachable", "overloaded"]
RefusalCode = Literal["no-worker", "no-model", "queue-full", "late"]


class RegisteredWorker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An inference engine behind the router."""

    id: str
    """Derived from its address, so that a restarted worker has the same."""
    url: str
    engine: Engine = "openai"
    models: list[str] = []
    """Empty: any."""
    most_calls: int | None = None
    """Most calls in flight; null: no bound."""
    kv_tokens: int | None = None
    """Capacity of its KV cache in tokens; null: not known."""
    drained: bool = False
    """It finishes its calls and gets no new ones."""
    registered_at: float = 0.0
    """Unix seconds of the last registration."""
    serial: int = 0
    """Number of its registrations: a higher one means that it was registered again."""
    labels: Annotated[dict[str, str], msgspec.Meta(max_length=64)] = {}


class WaitingCall(msgspec.Struct, frozen=True, array_like=True, tag="arrived"):
    """A call of a follower's client that needs a worker."""

    id: str
    trajectory: str
    tenant: str
    group: str
    model: str
    priority: float
    context_tokens: int
    most_tokens: int | None
    deadline_s: float
    """Unix seconds by Valkey's clock."""
    avoid: list[str]
    tries: int = 0


class SentCall(msgspec.Struct, frozen=True, array_like=True):
    """A call that was sent to a worker."""

    call: str
    replica: str
    worker: str


class RefusedCall(msgspec.Struct, frozen=True, array_like=True):
    """A call that gets no worker."""

    call: str
    replica: str
    code: RefusalCode
    reason: str
    retry_after_s: float | None


class ProgressedCall(msgspec.Struct, frozen=True, array_like=True, tag="progressed"):
    """Bytes of its answer have arrived."""

    call: str


class FinishedTrajectory(msgspec.Struct, frozen=True, array_like=True, tag="finished"):
    """No call of it follows."""

    trajectory: str


class EndedCall(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """The end of a call."""

    call: str
    outcome: Outcome
    held_tokens: int | None


class RouterLeads(Message, frozen=True, kw_only=True, tag="router.leads.v1"):
    """A replica leads from now on. All others report their calls."""

    epoch: int
    replica: str


class CallsReported(Message, frozen=True, kw_only=True, tag="calls.reported.v1"):
    """What has happened to the calls of one follower since its last report."""

    replica: str
    epoch: int
    """Term for which it is meant. A leader of another one ignores it."""
    restored: list[tuple[WaitingCall, str]] = []
    """Calls in flight, with their workers: the first report to a new leader."""
    events: list[WaitingCall | ProgressedCall | EndedCall | FinishedTrajectory] = []
    """In their order."""
    whole: bool = False
    """First report of this replica to this leader: its calls that are not in it have ended."""


class CallsDecided(Message, frozen=True, kw_only=True, tag="calls.decided.v1"):
    """Decisions of the leader about calls of followers."""

    epoch: int
    sent: list[SentCall] = []
    refused: list[RefusedCall] = []
    recalled: list[tuple[str, str]] = []
    """(Call, replica): its worker makes no progress."""


class WorkersChanged(Message, frozen=True, kw_only=True, tag="workers.changed.v1"):
    """Workers were registered, drained or removed: read them again."""


class ModelTrajectoryClosed(Message, frozen=True, kw_only=True, tag="trajectory.closed.v1"):
    """A trajectory was closed by its trainer: its calls end, and its worker is free of it."""

    trajectory: str
    tenant: str


RoutingMessage = RouterLeads | CallsReported | CallsDecided | WorkersChanged | ModelTrajectoryClosed
ROUTING: Topic[RouterLeads | CallsReported | CallsDecided | WorkersChanged | ModelTrajectoryClosed] = Topic(
    "routing", RoutingMessage, maxlen=16_384
)


def routed_name(tenant: str, trajectory: str) -> str:
    """Return the name by which the router knows a trajectory: ids of clients are unique within their tenant."""
    return f"{tenant}/{trajectory}"
