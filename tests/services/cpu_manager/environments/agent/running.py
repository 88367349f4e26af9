"""The agent as its file, run by this machine's Python, and the manager's end of its connection."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from services.cpu_manager.environments.channel import AgentChannel
from services.cpu_manager.environments.protocol import ActEnd
from services.cpu_manager.kinds import IN_ENVIRONMENTS


@contextmanager
def running(
    program: Path, *arguments: str, kept: int | None = None, number: int | None = None, path: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """The program's process. It has the descriptor `kept` under its own number, or under `number`."""
    home = program.parent / "home"
    home.mkdir(exist_ok=True)
    env = {"PATH": path or os.defpath, "HOME": str(home), "LANG": "C.UTF-8"}
    command = [sys.executable, "-I", "-S", str(program), *arguments]
    if number is not None:  # Popen hands on no descriptor under another number
        command = ["/bin/bash", "-c", f'exec "$@" {number}<&{kept}', "bash", *command]
    process = subprocess.Popen(command, cwd=home, env=env, pass_fds=() if kept is None else (kept,))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def connected(program: Path, path: str = "", number: int | None = None) -> AsyncIterator[AgentChannel]:
    """The manager's end of it. `number`: of the connection, in the agent."""
    ours, theirs = socket.socketpair()
    kept = theirs.fileno()
    with running(program, f"fd:{number or kept}", kept=kept, number=number, path=path) as process:
        theirs.close()
        agent = AgentChannel(ours)
        try:
            await agent.settle("", {"GIVEN": "it"}, 20)
            yield agent
        finally:
            agent.close()
        assert await asyncio.to_thread(process.wait, 20) == 0, "it ends with its only manager"


async def do(agent: AgentChannel, kind: str, timeout_s: float = 20.0, **params: object) -> ActEnd:
    """One action: `kind` without its `env.`."""
    name = f"env.{kind}"
    return await agent.do(name, msgspec.convert(params, IN_ENVIRONMENTS[name].params), timeout_s)
