"""Settings of the trajectory router (`TRAJECTORY_ROUTER_*`)."""

from __future__ import annotations

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from shared.runtime.settings import ServiceSettings


class TrajectoryRouterSettings(ServiceSettings):
    """One replica of the router."""

    model_config = SettingsConfigDict(
        env_prefix="TRAJECTORY_ROUTER_", frozen=True, use_attribute_docstrings=True, env_ignore_empty=True
    )

    url: str = ""
    """Address under which the nodes of the mesh reach this replica. Empty: `host` and `port`."""
    operator_key: SecretStr | None = None
    """Key of `/workers` (`Authorization: Bearer`). Without one these routes answer on loopback addresses only."""
    worker_key: SecretStr | None = None
    """Key that workers get as `Authorization: Bearer` where a call has none."""
    max_calls: int = Field(16_384, gt=0)
    """Calls that this replica carries or holds in its queue at once. Each has a connection."""
    max_waiting: int = Field(65_536, gt=0)
    """Calls of the whole mesh that wait for a worker."""
    max_body_bytes: int = Field(64 << 20, gt=0)
    """Largest body of a call."""
    max_bodies_bytes: int = Field(1 << 30, gt=0)
    """Bytes of calls' bodies in memory."""
    wait_s: float = Field(3600.0, gt=0)
    """Seconds for which a call without a deadline of its own waits for a worker. A call that was sent is not ended."""
    connect_s: float = Field(2.0, gt=0)
    """Limit of a connection to a worker. After it the call is sent to another one."""
    stall_s: float = Field(10.0, gt=0)
    """Seconds without a byte of any running call after which a worker is called for one token."""
    canary_s: float = Field(10.0, gt=0)
    """Limit of that call. A worker that fails it makes no progress, and leaves rotation."""
    kv_idle_s: float = Field(120.0, gt=0)
    """Seconds after its last call for which a trajectory keeps its reservation of a worker's KV cache."""
    pin_idle_s: float = Field(3600.0, gt=0)
    """Seconds after its last call for which a trajectory stays with its worker."""
    keep_tokens_s: float = Field(86_400.0, gt=0)
    """Seconds after its last recorded call for which a trajectory's token record is kept."""
    max_tokens_recorded: int = Field(2_000_000, gt=0)
    """Ids of one trajectory's record. At this size its calls are refused with 409."""
    lease_s: float = Field(3.0, gt=0)
    """Lifetime of the lease of the replica that admits calls. After it another one takes over."""

    def address(self) -> str:
        """Return the address that others use."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.url.rstrip("/") or f"http://{host}:{self.port}"

    def key(self) -> str:
        """Return the key of workers; empty: none."""
        return "" if self.worker_key is None else self.worker_key.get_secret_value()
