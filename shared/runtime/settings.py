"""Settings: frozen, documented, read once from the environment. A misspelt name is an error."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

S = TypeVar("S", bound=BaseSettings)

SHOULD_BE = {
    "time_delta_parsing": "seconds (15) or an ISO 8601 duration (PT15S)",
    "bool_parsing": "true or false",
    "int_parsing": "a whole number",
    "float_parsing": "a number",
}
"""Pydantic's error type -> what a person may write instead. Other errors use pydantic's sentence."""


class WrongSetting(ValueError):
    """Environment variables that cannot be read. The message has one line for each, for the person at the terminal."""


class MisspeltSetting(WrongSetting):
    """An environment variable has a service's prefix, but the service has no such setting."""


def _url_of(*schemes: str) -> Callable[[str], str]:
    def check(url: str) -> str:
        if not url.startswith(tuple(f"{scheme}://" for scheme in schemes)):
            raise ValueError(f"it should begin with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        return url

    return check


def _seconds(value: object) -> object:
    """Convert a number of seconds to a `timedelta`. Pydantic reads or rejects everything else."""
    if not isinstance(value, str):
        return value
    try:
        return timedelta(seconds=float(value))
    except (ValueError, OverflowError):  # not a number, or out of a duration's range (inf, nan, 1e20)
        return value


def _not_negative(duration: timedelta) -> timedelta:
    if duration < timedelta(0):
        raise ValueError("it should be 0 or more")
    return duration


Duration = Annotated[timedelta, BeforeValidator(_seconds), AfterValidator(_not_negative)]
"""A duration: seconds (`15`, `0.5`), ISO 8601 (`PT15S`) or `HH:MM:SS`. Pydantic alone rejects the text `15`."""


def _level(name: str) -> str:
    if name.upper() not in logging.getLevelNamesMapping():
        raise ValueError("it should be DEBUG, INFO, WARNING, ERROR or CRITICAL")
    return name


class TreadleSettings(BaseSettings):
    """Settings of every service. An empty variable counts as not set, so Compose files and CI may pass empty ones."""

    model_config = SettingsConfigDict(
        env_prefix="TREADLE_", frozen=True, use_attribute_docstrings=True, env_ignore_empty=True
    )

    redis_url: Annotated[str, AfterValidator(_url_of("redis", "rediss", "unix"))] = "redis://127.0.0.1:6379/0"
    """Valkey or Redis; `unix:///path/valkey.sock` works. `treadle up` sets it."""
    database_url: Annotated[str, AfterValidator(_url_of("postgresql+asyncpg"))] = (
        "postgresql+asyncpg://treadle@127.0.0.1:5432/treadle"
    )
    """Postgres for batch histories, as SQLAlchemy writes it."""
    log_json: bool = False
    """One JSON object per line instead of text for people."""
    log_level: Annotated[str, AfterValidator(_level)] = "INFO"
    """Least severe level that is written."""
    store_paths: str = ""
    """Folders of Valkey and Postgres on this machine, separated as in PATH. New work is rejected while their disks are
    short. `treadle up` sets it for its own servers; empty: nothing is measured."""
    home: Path | None = None
    """Folder of the embedded stack (`~/.treadle`, as root `/var/lib/treadle`)."""
    data: Path = Path("../shared/data")
    """Input data of tests, benches and the demo. Parts that need it report its absence and are skipped then."""


def load(settings: type[S]) -> S:
    """Read a service's settings from the environment.

    Raises:
        MisspeltSetting: a variable has the service's prefix but no such field (pydantic-settings would ignore it).
        WrongSetting: a value cannot be read; the message names the variable.
    """
    prefix = str(settings.model_config.get("env_prefix") or "").upper()
    if prefix and prefix != "TREADLE_":  # tools share TREADLE_ (TREADLE_HOME ...), and each reads its own variables
        known = {prefix + name.upper() for name in settings.model_fields}
        unknown = sorted(name for name in os.environ if name.upper().startswith(prefix) and name.upper() not in known)
        if unknown:
            what = f"names no setting; {prefix}* settings are {', '.join(sorted(known))}"
            raise MisspeltSetting("\n".join(f"{name} {what}" for name in unknown))
    try:
        return settings()
    except (ValidationError, SettingsError) as error:
        raise WrongSetting("\n".join(_explained(prefix, error))) from None


def _explained(prefix: str, error: ValidationError | SettingsError) -> Iterator[str]:
    """Yield a line for each variable: its name, its value, what it should be."""
    if isinstance(error, SettingsError):  # a variable that should be JSON but is not
        named = re.search(r'field "(\w+)"', str(error))
        yield f"{prefix}{named[1].upper()} is not JSON" if named else str(error)
        return
    for each in error.errors(include_url=False):
        field, *inside = map(str, each["loc"])
        name = ".".join([prefix + field.upper(), *inside])
        value = "wrong" if name.endswith("_URL") else repr(each["input"])  # an address may have a password
        should = SHOULD_BE.get(each["type"])
        said = each["msg"].removeprefix("Value error, ").replace("Input should", "it should", 1)
        yield f"{name} is {value}: {f'it should be {should}' if should else said}"


class ServiceSettings(BaseSettings):
    """Base of a service's own settings: its address, and the settings that all services share."""

    treadle: TreadleSettings = Field(default_factory=lambda: load(TreadleSettings))
    host: str = "127.0.0.1"
    """Address to listen on. Loopback by default, because there are no keys yet: only the network limits access."""
    port: int = 0
    """Port to listen on; 0 takes a free one."""
    allowed_hosts: str = ""
    """Further names of this service, separated by commas, without ports; `*` allows all. On a loopback address, a
    request with another name in Host or Origin is rejected. List the names that a local reverse proxy passes on."""
