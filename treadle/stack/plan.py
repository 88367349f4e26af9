"""From settings to the processes of a stack. Only values: nothing is started here."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from treadle.mesh import mesh_command
from treadle.stack.compiled_code import cache_setting
from treadle.stack.home import Home
from treadle.stack.listen_socket import ListenSocket
from treadle.stack.postgres import initialise_postgres, postgres_answers, postgres_launch, postgres_url
from treadle.stack.probes import Probe, check_probe, service_probe
from treadle.stack.process import Launch
from treadle.stack.services import PROXY, SECRET_PREFIXES, ServiceSpec
from treadle.stack.settings import StackSettings
from treadle.stack.valkey import MEBIBYTE, valkey_answers, valkey_launch, valkey_socket, valkey_url

STORE_PAUSE_S = 5.0
"""Longest pause before a store is started again. Everything waits for it, and it starts in a tenth of a second."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to be kept running."""

    launch: Launch
    url: str
    probe: Probe
    longest_pause_s: float = 30.0
    """Longest pause before it is started again."""
    listen_socket: ListenSocket | None = None
    """Its listening socket. The descriptor is the last argument of the command."""

    @property
    def name(self) -> str:
        return self.launch.name


@dataclass(frozen=True, slots=True)
class External:
    """A server of another owner, used instead of ours."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class StackPlan:
    """All processes of a stack, in the order of their start: servers, preparation, services."""

    home: Home
    servers: tuple[ProcessSpec, ...]
    externals: tuple[External, ...]
    prepare: Launch
    """Runs once the servers answer, and must succeed: migrations, the check of a foreign server."""
    services: tuple[ProcessSpec, ...]
    start_timeout: timedelta
    log_bytes: int


def plan_stack(
    home: Home,
    settings: StackSettings,
    environ: Mapping[str, str],
    services: Sequence[ServiceSpec],
) -> StackPlan:
    """Return the processes for ``services``. Creates the database cluster if there is none; opens the services' ports.

    Args:
        environ: environment of every service. ``TREADLE_REDIS_URL`` and ``TREADLE_DATABASE_URL`` in it name servers
            that are used instead of the embedded ones.
    Raises:
        StackError: the cluster cannot be created, or a port is taken.
    """
    secrets = {name: value for name, value in environ.items() if name.startswith(SECRET_PREFIXES)}
    environ = {name: value for name, value in environ.items() if name not in secrets}
    redis_url, database_url = environ.get("TREADLE_REDIS_URL"), environ.get("TREADLE_DATABASE_URL")
    servers, externals = [], []
    if database_url:
        externals.append(External("postgres", without_password(database_url)))
    else:
        initialise_postgres(home)
        servers.append(_postgres(home))
    if redis_url:
        externals.append(External("valkey", without_password(redis_url)))
    else:
        servers.append(_valkey(home, settings))
    shared = {
        **environ,
        **cache_setting(environ, home.cache),
        "TREADLE_HOME": str(home.root),
        "TREADLE_REDIS_URL": redis_url or valkey_url(home),
        "TREADLE_DATABASE_URL": database_url or postgres_url(home),
        "PYTHONUNBUFFERED": "1",
    }
    own = [str(folder) for folder, url in ((home.valkey, redis_url), (home.postgres, database_url)) if not url]
    shared.setdefault("TREADLE_STORE_PATHS", os.pathsep.join(own))
    grace_s = settings.grace.total_seconds()
    foreign = ("--foreign-redis",) if redis_url else ()
    return StackPlan(
        home=home,
        servers=tuple(servers),
        externals=tuple(externals),
        prepare=_python("prepare", shared, "treadle.stack.prepare", *foreign),
        services=tuple(_service(spec, {**shared, **_own(spec, secrets)}, grace_s) for spec in services),
        start_timeout=settings.start_timeout,
        log_bytes=settings.log_mib * MEBIBYTE,
    )


def _postgres(home: Home) -> ProcessSpec:
    probe = check_probe(partial(postgres_answers, home), "it does not take connections yet")
    return ProcessSpec(postgres_launch(home), postgres_url(home), probe, STORE_PAUSE_S)


def _valkey(home: Home, settings: StackSettings) -> ProcessSpec:
    def answers(_: int) -> bool:
        return valkey_answers(valkey_socket(home))

    launch = valkey_launch(home, maxmemory_bytes=settings.valkey_maxmemory_mib * MEBIBYTE)
    return ProcessSpec(launch, valkey_url(home), check_probe(answers, "it does not answer PING yet"), STORE_PAUSE_S)


def _service(spec: ServiceSpec, shared: Mapping[str, str], grace_s: float) -> ProcessSpec:
    prefix = spec.name.upper()
    option = "--port or " if spec.name == PROXY else ""
    listen_socket = ListenSocket(*spec.address(shared), f"{option}{prefix}_PORT")
    listen_socket.open()
    env = {**shared, f"{prefix}_HOST": listen_socket.host, f"{prefix}_PORT": str(listen_socket.port)}
    launch = _python(spec.name, env, "treadle.stack.serve", spec.name, spec.factory, "--fd")
    launch = replace(launch, grace_s=grace_s)
    return ProcessSpec(
        launch, listen_socket.url, service_probe(listen_socket.host, listen_socket.port), listen_socket=listen_socket
    )


def _own(spec: ServiceSpec, secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets of a service."""
    return {name: value for name, value in secrets.items() if spec.secrets and name.startswith(spec.secrets)}


def _python(name: str, env: Mapping[str, str], module: str, *arguments: str) -> Launch:
    return Launch(name, mesh_command(module, *arguments), env, cwd=Path.cwd())


def without_password(url: str) -> str:
    """Return ``url`` without its password, for display."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return parts._replace(netloc=f"{parts.username or ''}:***@{parts.netloc.rpartition('@')[2]}").geturl()
