"""Bodies of `/workers` of the trajectory router, in the shapes of sglang-router and vllm-router."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from shared.messages.routing import Engine
from shared.policy.routing.model import WorkerState

ENGINE_URL: Final = r"^https?://[^\s/?#@]+/?$"
"""Pattern of an engine's address."""
ENGINE_URL_CHARS: Final = 512


class WorkerRequest(BaseModel):
    """Registers an inference engine, or registers it again after a restart."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"examples": [{"url": "http://10.0.0.7:8000"}]})

    url: str = Field(pattern=ENGINE_URL, max_length=ENGINE_URL_CHARS)
    """Address of the engine: `http://host:port`."""
    model_id: str | None = Field(None, max_length=256)
    """The one model that it serves. Default: what `/v1/models` lists."""
    engine: Engine | None = None
    """Dialect of the engine. Default: detected."""
    most_calls: int | None = Field(None, ge=1)
    """Most calls in flight. Others wait in the router, in the order of their priority. Default: what the engine
    reports. Set it to at most vLLM's `max_num_seqs`."""
    kv_tokens: int | None = Field(None, ge=1)
    """Capacity of its KV cache in tokens. Default: what the engine reports."""
    labels: dict[str, str] = {}
    """Your own notes."""


class WorkerAccepted(BaseModel):
    """A worker was registered, drained or removed."""

    status: str = "accepted"
    worker_id: str
    location: str
    url: str
    message: str = ""


class WorkerAddresses(BaseModel):
    """Addresses of the registered engines."""

    urls: list[str]


class WorkerView(BaseModel):
    """An inference engine and what it does."""

    id: str
    url: str
    engine: Engine
    models: list[str]
    state: WorkerState | None
    """Null while no router leads."""
    reason: str = ""
    is_healthy: bool
    """It gets calls."""
    drained: bool
    most_calls: int | None
    in_flight: int = 0
    """Calls that it answers."""
    waiting: int = 0
    """Calls that wait for it in the router."""
    trajectories: int = 0
    """Trajectories that are pinned to it."""
    kv_tokens: int | None
    kv_reserved: int = 0
    """Tokens that its admitted trajectories are expected to hold at their end."""
    labels: dict[str, str] = {}


class WorkerList(BaseModel):
    """All workers."""

    workers: list[WorkerView]
    total: int
