"""Settings of the engine proxy (`ENGINE_PROXY_*`)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.runtime.settings import TreadleSettings, load


class EngineProxySettings(BaseSettings):
    """One engine proxy: between one CPU manager and the engine of its host."""

    model_config = SettingsConfigDict(env_prefix="ENGINE_PROXY_", frozen=True, use_attribute_docstrings=True)

    treadle: TreadleSettings = Field(default_factory=lambda: load(TreadleSettings))
    listen: Path = Path("/run/treadle-engine/docker.sock")
    """The engine proxy's own socket, in a folder that only the CPU manager shares."""
    engine: Path = Path("/var/run/docker.sock")
    """The engine's socket."""
    node: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    """The manager's node. Only containers with the label `treadle.node=<node>` can be created or reached."""
    owner: int = Field(default=0, ge=0)
    """User id that owns the engine proxy's socket and alone may connect: the manager's."""
    archive_bytes: int = Field(default=1 << 30, gt=0)
    """Largest archive that one call may put into a container."""
    connections: int = Field(default=4096, gt=0)
    """Most calls at once. An environment may keep one open until it ends."""
