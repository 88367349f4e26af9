"""Settings of the quota manager (`QUOTA_MANAGER_*`)."""

from __future__ import annotations

import platform
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Final

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.quota_manager.kinds import MOST_BYTES
from shared.runtime.byte_budget import ByteBudget
from shared.runtime.settings import ServiceSettings

PARTS: Final = 4
"""Parts of the memory for answers, of which a tenant has one at most."""


class QuotaManagerSettings(ServiceSettings):
    """One node that calls external services."""

    model_config = SettingsConfigDict(
        env_prefix="QUOTA_MANAGER_", frozen=True, use_attribute_docstrings=True, env_ignore_empty=True
    )

    node: str = Field(
        default_factory=lambda: f"{platform.node().split('.')[0] or 'node'}-calls", pattern=r"^[A-Za-z0-9_-]+$"
    )
    """Name of this node; unique in the mesh."""
    node_class: str = "default"
    """Pools are (resource, node class): nodes of one class are interchangeable."""
    calls: int = Field(1024, gt=0, le=65_536)
    """Calls at the same time. Each holds a connection."""
    bodies_bytes: int = Field(512 << 20, ge=PARTS * MOST_BYTES)
    """Bytes of answers' bodies in memory. A tenant has at most a quarter. Further large answers are read later, in
    their time limit. The first 65,536 bytes of an answer are not counted."""
    heartbeat_s: float = Field(2.0, gt=0)
    """Seconds between heartbeats. By default the leader considers a node lost after five missed ones."""
    allow_addresses: list[IPv4Network | IPv6Network] = []
    """Private addresses that calls may reach, as a JSON list of CIDRs: `["10.1.0.0/16"]`. Empty: none."""
    secrets: Path | None = None
    """JSON file of the secrets, of mode 0600 (docs/operations.md). Empty: only the variables `QUOTA_SECRET_*`."""
    output_bytes: int = Field(4 << 20, gt=0)
    """Largest JSON of one result. A longer text is cut and flagged; longer documents of a search have failed."""
    grace_s: float = Field(5.0, ge=0, le=10)
    """Seconds that a stopping node waits for calls that have begun. The others are made again by the next node."""

    def bodies(self) -> ByteBudget:
        """Return the memory of answers."""
        return ByteBudget(self.bodies_bytes, self.bodies_bytes // PARTS)
