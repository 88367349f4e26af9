"""Settings of the stack itself. Each service has its own settings."""

from datetime import timedelta

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.runtime.settings import Duration


class StackSettings(BaseSettings):
    """Read from ``STACK_*``. ``TREADLE_HOME``, ``TREADLE_REDIS_URL``, ``TREADLE_DATABASE_URL`` apply to all parts."""

    model_config = SettingsConfigDict(env_prefix="STACK_", frozen=True, use_attribute_docstrings=True)

    valkey_maxmemory_mib: int = Field(1024, ge=16)
    """Memory bound of the embedded Valkey. At the bound new work is answered 503; queued work stays."""
    start_timeout: Duration = timedelta(seconds=60)
    """Longest time without progress until a part is ready, before ``treadle up`` gives up and stops everything.

    Progress is CPU time; a service that compiles on a busy machine makes some. The limit in any case is ten times."""
    grace: Duration = timedelta(seconds=15)
    """Time for a stopping service to end HTTP calls, end its programs and publish its Bye, before it is killed."""
    log_mib: int = Field(16, ge=1)
    """A log file that grows beyond this is renamed to ``<name>.log.1``, so up to twice as much is kept."""
    services: str = ""
    """Services to run, separated by commas; empty: all. ``name=module:callable`` adds one that is not ours."""
