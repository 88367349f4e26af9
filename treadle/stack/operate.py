"""Operations of ``treadle up``, ``down`` and ``status``, without the terminal."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace as replaced
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

from msgspec.structs import replace

from shared.runtime.identity import Identity
from shared.runtime.settings import TreadleSettings, WrongSetting, load
from shared.runtime.stack_state import (
    AlreadySupervised,
    Phase,
    ServiceState,
    StackError,
    StackState,
    is_supervised,
    read_state,
    supervising,
)
from treadle.mesh import mesh_command
from treadle.stack.append_only import Scan, repair
from treadle.stack.home import Home, home_path, open_home
from treadle.stack.logs import ServiceLogs
from treadle.stack.model_service_file import file_warnings
from treadle.stack.plan import plan_stack
from treadle.stack.services import PROXY, ServiceSpec, chosen_services
from treadle.stack.settings import StackSettings
from treadle.stack.supervisor import supervise
from treadle.stack.sweep import remove_containers, sweep

DOWN_TIMEOUT_S = 90.0
POLL_S = 0.05


def run_stack(environ: Mapping[str, str], view: TextIO | None) -> int:
    """Start the stack of ``environ``, run it until a signal, stop it. Return the exit status. Blocks.

    Raises:
        AlreadySupervised: it is already up.
        StackError: the home, the cluster or a port is not available; it is already up on another port than requested.
    """
    home = open_home(home_path(environ))
    with _lock_home(home.root, environ):
        if (earlier := read_state(home.root)) is not None:
            sweep(earlier, home.root)
        settings, services = _load_settings(environ)
        plan = plan_stack(home, settings, environ, services)
        width = max(len(spec.name) for spec in (*plan.servers, *plan.services)) + 1
        logs = ServiceLogs(home.log, limit_bytes=plan.log_bytes, view=view, width=width)
        for warning in file_warnings(environ):
            logs.line("treadle", f"WARNING: {warning}")
        try:
            return asyncio.run(supervise(plan, logs))
        finally:
            logs.close()
            remove_containers(home.root)


def start_detached(environ: Mapping[str, str], changed: Callable[[ServiceState], None]) -> StackState:
    """Start a supervisor that outlives this process, and wait until its stack is up.

    Args:
        changed: called for each service whose state has changed meanwhile.
    Raises:
        AlreadySupervised: it is already up.
        StackError: it did not come up, or is already up on another port than requested. The message has the reason.
    """
    home = open_home(home_path(environ))
    with _lock_home(home.root, environ):
        pass  # the supervisor takes the lock itself
    _load_settings(environ)  # so that a wrong setting is reported here, not by a supervisor that ends at once
    printed = home.log / "supervisor.log"
    with printed.open("wb") as output:
        process = subprocess.Popen(
            mesh_command("treadle.stack"),
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return await_up(process, home.root, printed, changed)


def await_up(
    supervisor: subprocess.Popen[bytes], root: Path, printed: Path, changed: Callable[[ServiceState], None]
) -> StackState:
    """Wait until the stack that ``supervisor`` starts on ``root`` is up. The supervisor has its own time limit.

    Args:
        printed: the file that gets the supervisor's own output.
        changed: called for each service whose state has changed meanwhile.
    Raises:
        StackError: it did not come up. The message has the reason.
    """
    known: dict[str, ServiceState] = {}
    while (status := supervisor.poll()) is None:
        state = read_state(root)
        if state is not None and state.pid == supervisor.pid:
            _report_changes(known, state, changed)
            if state.phase is Phase.UP:
                return state
        time.sleep(POLL_S)
    state = read_state(root)
    if state is not None and state.pid == supervisor.pid and state.error:
        raise StackError(state.error)
    raise StackError(f"the supervisor ended with status {status}:\n{printed.read_text(errors='replace')}".rstrip())


def stop_stack(root: Path) -> bool:
    """Stop the stack of ``root``, and what an earlier one has left. Return whether there was anything to stop.

    Raises:
        StackError: it belongs to another user, or does not end.
    """
    state = read_state(root)
    if state is None:
        return False
    if not is_supervised(root):
        swept = sweep(state, root)
        return remove_containers(root) or bool(swept)
    supervisor = state.supervisor
    try:
        os.kill(supervisor.pid, signal.SIGTERM)
    except PermissionError as error:
        raise StackError(f"the stack in {root} was started by another user (pid {supervisor.pid})") from error
    except ProcessLookupError:
        pass
    if not _await_end(supervisor, DOWN_TIMEOUT_S):
        os.kill(supervisor.pid, signal.SIGKILL)
        _await_end(supervisor, DOWN_TIMEOUT_S)
    sweep(read_state(root) or state, root)
    remove_containers(root)
    return True


def repair_store(environ: Mapping[str, str]) -> tuple[Scan, Path | None]:
    """Repair the embedded Valkey's file. Return its scan, and the copy of a damaged file.

    Raises:
        StackError: no stack has run in the home, the stack is up, or the file cannot be repaired.
    """
    home = _existing_home(environ)
    try:
        with supervising(home.root):
            if (earlier := read_state(home.root)) is not None:
                sweep(earlier, home.root)
            return repair(home)
    except AlreadySupervised:
        raise StackError(f"the stack in {home.root} is up: stop it first (treadle down)") from None


def upgrade_stack(environ: Mapping[str, str], *, check: bool) -> list[str]:
    """Start only the servers, upgrade their data to this release, stop them. Return a line for each store and step.

    Raises:
        StackError: no stack has run in the home, the stack is up, a server does not start, or the data cannot be
            upgraded. The message has the reason.
    """
    home = _existing_home(environ)
    try:
        with supervising(home.root):
            if (earlier := read_state(home.root)) is not None:
                sweep(earlier, home.root)
            settings, _ = _load_settings(environ)
            plan = plan_stack(home, settings, environ, ())
            arguments = ("--report", *(("--check",) if check else ()))
            prepare = replaced(plan.prepare, argv=(*plan.prepare.argv, *arguments))
            plan = replaced(plan, prepare=prepare)
            logs = ServiceLogs(home.log, limit_bytes=plan.log_bytes)
            try:
                failed = asyncio.run(supervise(plan, logs, prepare_only=True))
            finally:
                logs.close()
    except AlreadySupervised:
        raise StackError(f"the stack in {home.root} is up: stop it first (treadle down)") from None
    if failed:
        state = read_state(home.root)
        raise StackError(state.error if state is not None else "the servers did not start")
    return logs.tail("prepare")


def current_state(root: Path) -> StackState | None:
    """Return the state of the stack of ``root``, with each recorded process checked; None if no stack is up."""
    state = read_state(root) if is_supervised(root) else None
    return state and replace(state, services=tuple(service.checked() for service in state.services))


@contextmanager
def _lock_home(root: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Hold the lock of ``root``.

    Raises:
        AlreadySupervised: a stack is up there.
        StackError: a stack is up there, and its proxy listens on another port than ``environ`` names.
    """
    with ExitStack() as held:
        try:
            held.enter_context(supervising(root))
        except AlreadySupervised:
            if (other := _other_port(root, environ)) is not None:
                raise StackError(other) from None
            raise
        yield


def _other_port(root: Path, environ: Mapping[str, str]) -> str | None:
    """Return a message if ``PROXY_PORT`` is another port than the running proxy's; 0 accepts any port."""
    requested, state = environ.get(f"{PROXY.upper()}_PORT", ""), read_state(root)
    if not requested.isdecimal() or int(requested) == 0 or state is None or not state.supervisor.alive():
        return None
    url = next((service.url for service in state.services if service.name == PROXY), None)
    if url is None or urlsplit(url).port == int(requested):
        return None
    return (
        f"the stack in {root} is already up and listens on {url}, not on port {requested}. Stop it first "
        "(treadle down), or start a second stack with another --home"
    )


def _existing_home(environ: Mapping[str, str]) -> Home:
    """Return the existing home of ``environ``. A misspelt path must not become a new home.

    Raises:
        StackError: no stack has run there. Nothing was created.
    """
    root = home_path(environ)
    servers = {"valkey": "TREADLE_REDIS_URL", "postgres": "TREADLE_DATABASE_URL"}
    folders = [root / name for name, foreign in servers.items() if not environ.get(foreign)]
    try:
        is_file = root.exists() and not root.is_dir()
        unused = bool(folders) and not is_file and not any(folder.is_dir() for folder in folders)
    except PermissionError:
        unused = False  # `open_home` reports which folder is closed
    if unused:
        raise StackError(f"no stack has run in TREADLE_HOME {root}: there is no data. Is the path misspelt?")
    return open_home(root)


def _load_settings(environ: Mapping[str, str]) -> tuple[StackSettings, tuple[ServiceSpec, ...]]:
    """Return the environment's settings of the stack, and the services to run.

    Raises:
        StackError: a setting is misspelt or invalid. The message names it.
    """
    try:
        load(TreadleSettings)
        settings = load(StackSettings)
    except WrongSetting as error:
        raise StackError(str(error)) from error
    services = chosen_services(settings.services, environ)
    for service in services:
        service.address(environ)
    return settings, services


def _report_changes(known: dict[str, ServiceState], state: StackState, changed: Callable[[ServiceState], None]) -> None:
    for service in state.services:
        before = known.get(service.name)
        if before is None or before.state is not service.state:
            known[service.name] = service
            changed(service)


def _await_end(process: Identity, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while process.alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
