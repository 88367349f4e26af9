"""Settings of the quota manager (`QUOTA_MANAGER_*`)."""

from __future__ import annotations

import platform
from ipaddress import IPv4Network, IPv6Network, ip_interface, ip_network
from pathlib import Path
from typing import Annotated, Final

import msgspec
from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode, SettingsConfigDict

from services.quota_manager.kinds import MOST_BYTES
from shared.runtime.byte_budget import ByteBudget
from shared.runtime.settings import ServiceSettings

PARTS: Final = 4
"""Parts of the memory for answers, of which a tenant has one at most."""


def _networks(value: object) -> object:
    """Read networks. Pydantic accepts a list only, and its text on an address with host bits says nothing of them."""
    if not isinstance(value, str):
        return value
    texts = value.split(",")
    if value.lstrip().startswith("["):
        try:
            texts = msgspec.json.decode(value, type=list[str])
        except msgspec.DecodeError as error:
            raise ValueError(
                'it should be networks as a JSON list: ["10.1.0.0/16"], or 10.1.0.0/16,10.2.0.0/16'
            ) from error
    return [_network(text.strip()) for text in texts if text.strip()]


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        network = ip_network(text, strict=False)
    except ValueError as error:
        raise ValueError(f"{text!r} is no network; write one as 10.1.0.0/16, and one address as 10.1.2.3/32") from error
    if "/" in text and ip_interface(text).ip != network.network_address:
        raise ValueError(
            f"{text} has bits past its prefix; write {network}, or {ip_interface(text).ip} for one address"
        )
    return network


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
    allow_addresses: Annotated[list[IPv4Network | IPv6Network], NoDecode, BeforeValidator(_networks)] = []
    """Private addresses that calls may reach: CIDRs as a JSON list, `["10.1.0.0/16"]`, or separated by commas. Empty:
    none."""
    secrets: Path | None = None
    """JSON file of the secrets, of mode 0600 (docs/operations.md). Empty: only the variables `QUOTA_SECRET_*`."""
    output_bytes: int = Field(4 << 20, gt=0)
    """Largest JSON of one result. A longer text is cut and flagged; longer documents of a search have failed."""
    grace_s: float = Field(5.0, ge=0, le=10)
    """Seconds that a stopping node waits for calls that have begun. The others are made again by the next node."""

    def bodies(self) -> ByteBudget:
        """Return the memory of answers."""
        return ByteBudget(self.bodies_bytes, self.bodies_bytes // PARTS)
