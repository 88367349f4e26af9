"""What a person may decide about the stack itself; what a service needs is in that service's settings."""

from datetime import timedelta

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.runtime.settings import Duration


class StackSettings(BaseSettings):
    """Read from ``STACK_*``; ``TREADLE_HOME``, ``TREADLE_REDIS_URL`` and ``TREADLE_DATABASE_URL`` are everyone's."""

    model_config = SettingsConfigDict(env_prefix="STACK_", frozen=True, use_attribute_docstrings=True)

    valkey_maxmemory_mib: int = Field(1024, ge=16)
    """Bound of the embedded Valkey. At the bound new work is answered 503; what is queued stays."""
    start_timeout: Duration = timedelta(seconds=60)
    """How long each part may take to be ready without progress before ``treadle up`` gives up and stops everything.

    Progress is CPU time: a service that compiles on a busy machine makes some. Ten times as long is the end anyway."""
    grace: Duration = timedelta(seconds=15)
    """How long a stopping service may take to end HTTP calls, cut its programs and say goodbye before it is killed."""
    log_mib: int = Field(16, ge=1)
    """A log file that grows beyond this is set aside as ``<name>.log.1``; so twice as much is kept."""
    services: str = ""
    """Which services run, separated by commas; empty: all. ``name=module:callable`` adds one that is not ours."""
