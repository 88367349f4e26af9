"""``treadle demo --agent``."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from rich.console import Console
from rich.table import Table

from shared.api.otlp import TraceData
from treadle.cli.proxy import NOT_UP, WRONG, CommandFailed, check_proxy
from treadle.cli.trace import trace_table
from treadle.client.asynchronous import AsyncTreadle
from treadle.grading.agent_demonstration import (
    BROKEN,
    SCRIPT,
    AgentDemonstration,
    AgentFailed,
    AgentMissing,
    demonstrate_agent,
)
from treadle.testing.scripted_engine import MODEL, running_scripted_engine

SECONDS = 0.5
"""Duration of an answer of the scripted model: about that of a real one."""
INSTALL = (
    "install mini-swe-agent in a virtual environment: python3 -m venv ~/mini; "
    "~/mini/bin/pip install mini-swe-agent mcp; then: treadle demo --agent --mini ~/mini/bin/mini"
)
MOST_OUTPUT = 2000
"""Characters of a failed agent's output that are shown."""
VISIBLE = "CPU_MANAGER_VISIBLE_PATHS"


def find_mini(given: Path | None) -> Path:
    """Return the program of mini-swe-agent.

    Raises:
        CommandFailed: it is not there, or where no sandbox can show it.
    """
    found = str(given.expanduser()) if given is not None else shutil.which("mini")
    if found is None or not os.access(found, os.X_OK):
        raise CommandFailed(
            f"{'mini-swe-agent is not in PATH' if found is None else f'{found} is not executable'}: {INSTALL}", WRONG
        )
    path = Path(os.path.abspath(found))  # noqa: PTH100  # not resolved: its environment is where it is called
    if path.is_relative_to("/tmp"):
        raise CommandFailed(f"a sandbox replaces /tmp, so its programs cannot see {path}: {INSTALL}", WRONG)
    return path


def visible_paths(mini: Path) -> str:
    """Return what sandboxes must show for it: its environment, and an interpreter outside of the system."""
    folders = [mini.parents[1]]
    interpreter = Path(os.path.realpath(mini.parent / "python3"))
    if not interpreter.is_relative_to("/usr"):
        folders.append(interpreter.parents[1])
    before = os.environ.get(VISIBLE, "")
    return ":".join([*([before] if before else []), *dict.fromkeys(map(str, folders))])


async def run_agent(
    url: str, router: str, key: str | None, mini: Path, engine: str | None, model: str | None, console: Console
) -> AgentDemonstration:
    """Add an engine to the router, and run the agent. Without `engine` the model is scripted."""
    async with AsyncTreadle(url) as client:
        await check_proxy(client)
        async with _model(engine, model, console) as (address, name), _worker(router, key, address):
            try:
                with console.status("") as status:
                    return await demonstrate_agent(client, mini, name, lambda title: status.update(f"{title} ..."))
            except AgentMissing as error:
                again = f"treadle down; {VISIBLE}={visible_paths(mini)} treadle up --detach"
                raise CommandFailed(
                    f"{error}\nRestart the stack so that sandboxes see the agent: {again}", WRONG
                ) from error
            except AgentFailed as error:
                raise CommandFailed(str(error), WRONG) from error


@asynccontextmanager
async def _model(engine: str | None, model: str | None, console: Console) -> AsyncIterator[tuple[str, str]]:
    """Address of an engine, and its model."""
    if engine is not None:
        if model is None:
            raise CommandFailed("--engine needs --model: the name of its model", WRONG)
        yield engine, model
        return
    console.print(
        f"Model: a script of {len(SCRIPT)} commands, which answers like vLLM. "
        "Your own: --engine http://HOST:PORT --model NAME",
        soft_wrap=True,
    )
    async with running_scripted_engine(SCRIPT, seconds=SECONDS) as scripted:
        yield scripted.url, MODEL


@asynccontextmanager
async def _worker(router: str, key: str | None, engine: str) -> AsyncIterator[None]:
    """Register an engine for as long as the context lasts. One that is registered already is left as it is."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(router, headers=headers, timeout=aiohttp.ClientTimeout(total=60)) as http:
        added = await _added(http, router, engine)
        try:
            yield
        finally:
            if added is not None:
                with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError):
                    async with http.delete(f"/workers/{added}"):
                        pass


async def _added(http: aiohttp.ClientSession, router: str, engine: str) -> str | None:
    """Register an engine, and return its id; None: it was registered already."""
    try:
        async with http.get("/workers") as reply:
            listed: dict[str, Any] = await reply.json()
        if engine.rstrip("/") in [worker["url"] for worker in listed.get("workers", [])]:
            return None
        async with http.post("/workers", json={"url": engine}) as reply:
            answer: dict[str, Any] = await reply.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise CommandFailed(f"no router answers at {router}: {error}", NOT_UP) from error
    if reply.status >= 300:
        raise CommandFailed(f"the router rejected {engine}: {answer.get('detail', answer)}", WRONG)
    return str(answer["worker_id"])


def _last(text: str) -> str:
    """Last line of a file; empty if it has none."""
    return (text.strip().splitlines() or [""])[-1].strip()


def show(found: AgentDemonstration, console: Console) -> None:
    """Print one trajectory: its calls, its times, its repair, its rows."""
    console.rule(f"Trajectory {found.trajectory}")
    calls = Table(title="Model calls", title_justify="left")
    for column in ("call", "prompt", "known prefix", "sampled", "policy", "status"):
        calls.add_column(column, justify="right" if column in ("prompt", "sampled", "known prefix") else "left")
    by_serial = {call.serial: call for call in found.calls}
    for call in found.calls:
        before = by_serial.get(call.extends) if call.extends is not None else None
        known = before.prompt_tokens + before.output_tokens if before is not None else 0
        versions = ", ".join(dict.fromkeys(span.version for span in call.versions))
        calls.add_row(
            str(call.serial), f"{call.prompt_tokens:,}", f"{known:,}", f"{call.output_tokens:,}", versions, call.status
        )
    console.print(calls)
    console.print(trace_table(msgspec.convert(found.trace, TraceData), console.width))
    for stage in found.agent.stages:
        console.print(
            f"Agent: one action on {found.node}: {stage.execution_s:.1f} s with a core, "
            f"{stage.parked_s:.1f} s without one while its model answered, {stage.queue_s:.1f} s in queues",
            soft_wrap=True,
        )
    if found.agent.passed is not True:
        output = "\n".join(str(found.agent.output.get(name, "")).strip() for name in ("stdout", "stderr"))
        console.print(f"[red]The agent ended with exit code {found.agent.output.get('exit_code')}[/]")
        console.print(output[-MOST_OUTPUT:], markup=False, highlight=False)
    console.print(f"[red]- {_last(BROKEN)}[/]\n[green]+ {_last(found.file)}[/]")
    passed = "[green]✓[/]" if found.graded.passed else "[red]✗[/]"
    console.print(f"{passed} graded in a fresh sandbox: reward {found.reward}")
    for number, row in enumerate(found.rows):
        console.print(
            f"Row {number}: {len(row.token_ids):,} tokens, {sum(row.loss_mask):,} of them trained, from "
            f"{len(row.calls)} calls; reward {found.reward}"
        )
    if not found.rows:
        reasons = "; ".join(sorted({call.reason for call in found.calls})) or "the agent has made no model call"
        console.print(f"[red]no training row[/]: {reasons}")
