"""Settings of the proxy (`PROXY_*`)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.runtime.settings import ServiceSettings


class ProxySettings(ServiceSettings):
    """One replica of the proxy."""

    model_config = SettingsConfigDict(env_prefix="PROXY_", frozen=True, use_attribute_docstrings=True)

    port: int = 8700
    """Port to listen on."""
    max_journal: int = Field(200_000, gt=0)
    """Unanswered actions in the whole mesh. Beyond it submissions get 503 with Retry-After."""
    disk_reserve_mib: int = Field(512, ge=0)
    """Fixed reserve of the stores' disk. New work gets 503 while less is free than this plus Valkey's data set."""
    max_body_bytes: int = Field(8 << 20, gt=0)
    """Largest body of a single request."""
    max_bulk_bytes: int = Field(128 << 20, gt=0)
    """Largest body of a bulk call."""
    max_bodies_bytes: int = Field(256 << 20, gt=0)
    """Bytes of all bodies at this replica, from their first byte to the end of their calls. Beyond it calls get 503
    with Retry-After. A body that is decoded takes about twice its size."""
    max_waiting: int = Field(50_000, gt=0)
    """Long polls held at once by this replica."""
    max_wait_s: float = Field(600.0, gt=0)
    """Longest `wait=`."""
    submit_retry_s: float = Field(10.0, gt=0)
    """Time for which a submission waits for a restarting Valkey before it answers 503."""
    read_deadline_s: float = Field(3.0, gt=0)
    """A read (GET) answers 503 if Valkey sends nothing for this time, counted after its `wait=` if it has one."""
    keep_action_s: float = Field(3600.0, gt=0)
    """Retention of answers of actions outside batches."""
    keep_delivered_s: float = Field(60.0, gt=0)
    """Retention of answers that were returned to a waiting caller and have no request_id."""
    keep_repeatable_s: float = Field(300.0, gt=0)
    """Retention of answers in trajectories that were returned to a waiting caller and have a request_id. Later repeats
    are rejected, because an action in an environment is not executed twice."""
    keep_batch_s: float = Field(86_400.0, gt=0)
    """Retention of a batch's results, from its end."""
    keep_deleted_s: float = Field(300.0, ge=0)
    """Retention of the results of a batch that DELETE cancelled, from its end (or from the call if it had ended).
    Until then they can be read. Afterwards neither store has them. 0: they cannot be read after the call."""
    archive_after_s: float = Field(60.0, ge=0)
    """Age after which answers move from Valkey to Postgres."""
    archive_fill: float = Field(0.5, gt=0, le=1)
    """Share of Valkey's memory bound. Beyond it answers move at once."""
    batch_idle_s: float = Field(7200.0, gt=0)
    """A batch is abandoned if it gets no submission and runs nothing for this time."""
    batch_lifetime_s: float = Field(86_400.0, gt=0)
    """A batch is abandoned at this age, from its opening."""
    max_trajectories: int = Field(50_000, gt=0)
    """Open trajectories in the whole mesh. Beyond it opening one gets 503 with Retry-After."""
    image_registries: str = "docker.io,ghcr.io,quay.io,gcr.io,registry.k8s.io,mcr.microsoft.com,public.ecr.aws,nvcr.io"
    """Registries that `image` may name, separated by commas, with a port where they have one; `*` allows all. A name
    without a registry belongs to Docker Hub. The nodes' container engines connect to them."""
    keep_trajectory_s: float = Field(3600.0, gt=0)
    """Retention of a trajectory's record, from its end."""
    lease_s: float = Field(4.0, gt=0.5)
    """Duration of the dispatching lease. A replica takes over from a dead leader after at most 1.13 times this time
    plus 0.5 s, and after about half of it plus 0.5 s if both run on one machine (ADR 0085)."""
    node_lost_s: float = Field(10.0, gt=0)
    """A node is treated as dead if it sends nothing for this time."""
    stimulus_logs: Path | None = None
    """Folder for the leader's stimulus log: all inputs and decisions of the dispatcher, for `treadle replay dispatch`.
    None: recent calls are in memory, and written to `log` of the stack's folder if the dispatcher fails."""
    stimulus_log_bytes: int = Field(96 << 20, gt=0)
    """Bound of that log. When a quarter is written, it continues in a new file, and older files are deleted."""
    max_attempts: int = Field(3, gt=0)
    """Attempts at one stage before an infrastructure failure is reported."""
    run_code_margin_s: float = Field(8.0, gt=0)
    """/run_code answers 504 this time after compile + run timeouts. It is shorter than the 10 s that clients add."""
    run_code_join_s: float = Field(60.0, gt=0)
    """A retry of a call of /run_code that got 504, or of /retrieve that got 503, can join its action for this time."""
    retrieve_s: float = Field(25.0, gt=0)
    """/retrieve answers 503 after this time. It is shorter than the 30 s after which its clients give up."""
    hold: Literal["auto", "always", "never"] = "auto"
    """Callers of /run_code that are held. auto: their User-Agent begins with python-requests; always: all over
    HTTP/1.1; never: none. Others get 504 at their deadline."""
    hold_s: float = Field(3600.0, gt=0)
    """Longest hold. After it the caller gets a SandboxError."""
    hold_blank_s: float = Field(3.0, gt=0)
    """Interval of the spaces to a held caller. It is shorter than the timeouts of the clients that are held."""
    max_held: int = Field(4096, gt=0)
    """Calls held at once by this replica. Beyond it /run_code answers 504. verl keeps 512 calls open by default."""
