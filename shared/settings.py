"""Settings: frozen, documented, read once from the environment; a misspelt name is an error, not a silence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

S = TypeVar("S", bound=BaseSettings)


class MisspeltSetting(ValueError):
    """An environment variable carries a service's prefix but names no setting of it."""


class TreadleSettings(BaseSettings):
    """What every service needs to find the others."""

    model_config = SettingsConfigDict(env_prefix="TREADLE_", frozen=True, use_attribute_docstrings=True)

    redis_url: str = "redis://127.0.0.1:6379/0"
    """Valkey or Redis; `unix:///path/valkey.sock` works. `treadle up` sets it."""
    database_url: str = "postgresql+asyncpg://treadle@127.0.0.1:5432/treadle"
    """Postgres for batch histories, as SQLAlchemy writes it."""
    log_json: bool = False
    """One JSON object a line instead of text for people."""
    log_level: str = "INFO"
    """Least severe level that is written."""
    home: Path | None = None
    """Where the embedded stack lives (`~/.treadle`, as root `/var/lib/treadle`)."""
    data: Path = Path("../shared/data")
    """Input data of tests, benches and the demo; parts that need it say so and are skipped where it is absent."""


def load(settings: type[S]) -> S:
    """Read a service's settings from the environment.

    Raises:
        MisspeltSetting: a variable has the service's prefix but no such field (pydantic-settings would ignore it).
        ValidationError: a value cannot be read; the message names the variable's field.
    """
    prefix = str(settings.model_config.get("env_prefix") or "").upper()
    if prefix and prefix != "TREADLE_":  # TREADLE_ is shared by tools (TREADLE_HOME ...), each reads its own
        known = {prefix + name.upper() for name in settings.model_fields}
        unknown = sorted(name for name in os.environ if name.upper().startswith(prefix) and name.upper() not in known)
        if unknown:
            raise MisspeltSetting(f"{unknown[0]} names no setting; {prefix}* knows {', '.join(sorted(known))}")
    return settings()


class ServiceSettings(BaseSettings):
    """Base of a service's own settings: where it listens, and what all services share."""

    treadle: TreadleSettings = Field(default_factory=TreadleSettings)
    host: str = "127.0.0.1"
    """Address to listen on. Loopback by default: there are no keys yet, so the network is the only wall."""
    port: int = 0
    """Port to listen on; 0 takes a free one."""
