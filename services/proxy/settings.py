"""Settings of the proxy (`PROXY_*`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.runtime.settings import ServiceSettings


class ProxySettings(ServiceSettings):
    """One replica of the front door."""

    model_config = SettingsConfigDict(env_prefix="PROXY_", frozen=True, use_attribute_docstrings=True)

    port: int = 8700
    """Port to listen on."""
    max_journal: int = Field(200_000, gt=0)
    """Unanswered actions in the whole mesh; beyond it submissions get 503 with Retry-After."""
    disk_reserve_mib: int = Field(512, ge=0)
    """New work is refused with 503 while the stores' disk has less free than this and the size of Valkey's data set."""
    max_body_bytes: int = Field(8 << 20, gt=0)
    """Largest body of a single request."""
    max_bulk_bytes: int = Field(128 << 20, gt=0)
    """Largest body of a bulk call."""
    max_bodies_bytes: int = Field(256 << 20, gt=0)
    """Bytes of all bodies at this replica, from their first byte to the end of their calls; beyond it 503 with
    Retry-After. A body that is decoded takes about twice its size."""
    max_waiting: int = Field(50_000, gt=0)
    """Long polls held at once by this replica."""
    max_wait_s: float = Field(600.0, gt=0)
    """Longest `wait=`."""
    submit_patience_s: float = Field(10.0, gt=0)
    """How long a submission waits for a restarting Valkey before it answers 503."""
    read_deadline_s: float = Field(3.0, gt=0)
    """A read (GET) answers 503 if Valkey sends nothing for this time, counted after its `wait=` if it has one."""
    keep_action_s: float = Field(3600.0, gt=0)
    """Answers of actions outside batches are kept so long."""
    keep_delivered_s: float = Field(60.0, gt=0)
    """Answers that were handed to a waiting caller, and cannot be asked for by a request_id, are kept so long."""
    keep_repeatable_s: float = Field(300.0, gt=0)
    """Answers in trajectories that were handed to a waiting caller, and can be asked for by a request_id, are kept so
    long. Later repeats are refused: what was done in an environment is not done again."""
    keep_batch_s: float = Field(86_400.0, gt=0)
    """Results of a batch are kept so long after its end."""
    keep_deleted_s: float = Field(300.0, ge=0)
    """Retention of the results of a batch that DELETE cancelled, from its end (or from the call if it had ended).
    Until then they can be read; then they are in neither store. 0: they cannot be read after the call."""
    archive_after_s: float = Field(60.0, ge=0)
    """Age after which answers move from Valkey to Postgres."""
    archive_fill: float = Field(0.5, gt=0, le=1)
    """Beyond this part of Valkey's memory bound they move at once."""
    batch_idle_s: float = Field(7200.0, gt=0)
    """A batch nobody submits to and that has nothing running is abandoned after so long."""
    batch_lifetime_s: float = Field(86_400.0, gt=0)
    """A batch is abandoned so long after it was opened."""
    max_trajectories: int = Field(50_000, gt=0)
    """Open trajectories in the whole mesh; beyond it opening gets 503 with Retry-After."""
    image_registries: str = "docker.io,ghcr.io,quay.io,gcr.io,registry.k8s.io,mcr.microsoft.com,public.ecr.aws,nvcr.io"
    """Registries that `image` may name, by commas, with a port where they have one; `*` allows all. A name without a
    registry is Docker Hub's. The container engines of nodes call them."""
    keep_trajectory_s: float = Field(3600.0, gt=0)
    """The record of a trajectory is kept so long after its end."""
    lease_s: float = Field(4.0, gt=0.5)
    """The dispatching lease. A dead leader is replaced after at most one and a half times so long and half a second."""
    node_lost_s: float = Field(10.0, gt=0)
    """A node silent for so long is taken for dead."""
    max_attempts: int = Field(3, gt=0)
    """Executions of one stage before our failures are reported."""
    run_code_margin_s: float = Field(8.0, gt=0)
    """/run_code answers 504 so long after compile + run timeouts: before clients that wait 10 s more give up."""
    run_code_join_s: float = Field(60.0, gt=0)
    """So long a retry of a /run_code call that got 504 finds the action still going."""
    hold: Literal["auto", "always", "never"] = "auto"
    """/run_code holds its callers: those whose User-Agent begins with python-requests, all over HTTP/1.1, none. Others
    get 504 at their deadline."""
    hold_s: float = Field(3600.0, gt=0)
    """Longest hold; then the caller gets a SandboxError."""
    hold_blank_s: float = Field(3.0, gt=0)
    """Interval of the blank bytes to a held caller. Shorter than the timeouts of the clients that are held."""
    max_held: int = Field(4096, gt=0)
    """Calls held at once by this replica; beyond it /run_code answers 504. verl keeps 512 calls open, by default."""
