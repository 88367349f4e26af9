"""The whole proxy in this process, on a port, and a simulated node."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI
from redis.asyncio import Redis

from services.cpu_manager.kinds import IN_ENVIRONMENTS, MEMORY
from shared.bus.connection import command, connect
from shared.bus.tail import Tail
from shared.messages.base import Message, Topic
from shared.messages.grants import EnvironmentClosed, Granted, InventoryRequested, Revoked, grants_topic
from shared.messages.nodes import NODES, Heartbeat, Hello
from shared.messages.outcomes import OUTCOMES, EnvironmentEnded, EnvironmentHeld, Finished, GrantHeld, InventoryTaken
from shared.policy.model.results import AttemptResult

Play = Callable[[Granted, dict[str, Any]], dict[str, Any] | None]
"""Result of an action: fields of its `Finished`. None: it runs until it is revoked or ended by the test."""


@asynccontextmanager
async def serving(app: FastAPI, *, grace_s: int | None = None, port: int = 0) -> AsyncIterator[str]:
    """The app's address while it is served. `grace_s`: time for which a stopping server waits for its calls."""
    config = uvicorn.Config(app, port=port, log_config=None, lifespan="on", timeout_graceful_shutdown=grace_s)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(120):  # compiled loops are read at first use
            while not server.started:  # noqa: ASYNC110  # uvicorn sets a flag
                await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


class SimulatedNode:
    """A node of 4 cores and 4 GiB, as the leader sees it. `play` decides the result of each action."""

    def __init__(self, redis: Redis, reader: Redis, play: Play) -> None:
        self._redis = redis
        self._topic = grants_topic("n", "1")
        self._tail = Tail(reader, {self._topic: "0"}, block_s=0.2)
        self.play = play
        self.granted: list[Granted] = []
        """All grants, in order."""
        self.environments: dict[str, int] = {}
        """Trajectory -> MB."""
        self._held: dict[str, Granted] = {}

    @classmethod
    @asynccontextmanager
    async def up(cls, url: str, play: Play, *kinds: str) -> AsyncIterator[SimulatedNode]:
        """Run a node that also offers these kinds."""
        async with connect(url, name="played-node") as redis, connect(url, name="played-reader") as reader:
            node = cls(redis, reader, play)
            await node._publish(NODES, msgspec.structs.replace(HELLO, kinds=[*HELLO.kinds, *kinds]))
            tasks = [asyncio.create_task(node._listen()), asyncio.create_task(node._beat())]
            try:
                yield node
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    async def end(self, action: str, **fields: Any) -> None:
        """End a running action."""
        grant = self._held.pop(action)
        rest: dict[str, Any] = {"status": "ok", "passed": True, **fields}
        output = msgspec.json.encode(rest.pop("output", {}))
        finished = Finished(
            action=action, node="n", incarnation="1", epoch=grant.epoch, attempt=grant.attempt, stage=grant.stage,
            result=AttemptResult(output=output, **rest),
        )  # fmt: skip
        await self._publish(OUTCOMES, finished)

    async def lose(self, trajectory: str, ended: Any = "lost", reason: str = "it was killed") -> None:
        """End an environment without a request."""
        del self.environments[trajectory]
        end = EnvironmentEnded(node="n", incarnation="1", trajectory=trajectory, ended=ended, reason=reason)
        await self._publish(OUTCOMES, end)

    async def _publish(self, topic: Topic[Any], message: Message) -> None:
        await command(self._redis, "XADD", topic.name, "*", "m", topic.encode(message))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            await self._publish(NODES, Heartbeat(node="n", incarnation="1", owned={"cores": 4}, used={}))

    async def _listen(self) -> None:
        async for entries in self._tail.batches():
            for entry in entries:
                await self._handle(entry.message)

    async def _handle(self, message: Any) -> None:
        match message:
            case InventoryRequested(epoch=epoch):
                held = [
                    GrantHeld(
                        action=one.action, epoch=one.epoch, attempt=one.attempt, stage=0, units=one.units, running_s=0
                    )
                    for one in self._held.values()
                ]
                environments = [
                    EnvironmentHeld(trajectory=name, units={MEMORY: mb}) for name, mb in self.environments.items()
                ]
                taken = InventoryTaken(node="n", incarnation="1", epoch=epoch, held=held, environments=environments)
                await self._publish(OUTCOMES, taken)
            case Granted():
                await self._act(message)
            case Revoked(action=action) if action in self._held:
                await self.end(action, status="cancelled", passed=None)
            case EnvironmentClosed(trajectory=trajectory):
                self.environments.setdefault(trajectory, 0)
                await self.lose(trajectory, "closed", "closed")

    async def _act(self, grant: Granted) -> None:
        self.granted.append(grant)
        self._held[grant.action] = grant
        if grant.environment is not None:
            self.environments.setdefault(grant.trajectory, grant.environment.memory_mb)
        if grant.trajectory and grant.trajectory not in self.environments:
            await self.end(grant.action, status="environment-lost", passed=None, reason="it is not here")
        elif (fields := self.play(grant, msgspec.json.decode(grant.params))) is not None:
            await self.end(grant.action, **fields)


HELLO = Hello(
    node="n", incarnation="1", node_class="default", capacity={"cores": 4, MEMORY: 4096},
    kinds=[*IN_ENVIRONMENTS, "noop"], runtimes=["local"],
)  # fmt: skip


class Folder:
    """Executes actions with this machine's programs in one folder. Its shells have no state; a real node's do."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, grant: Granted, params: dict[str, Any]) -> dict[str, Any] | None:
        name = grant.work.removeprefix("env.")
        try:
            output = getattr(self, name)(params, grant.timeout_s)
        except subprocess.TimeoutExpired as cut:
            stdout, stderr = ((each or b"").decode() for each in (cut.stdout, cut.stderr))
            partial = {"output": stdout} if name == "bash" else {"stdout": stdout, "stderr": stderr}
            return {
                "status": "timeout", "passed": None, "reason": f"still running after {grant.timeout_s:g} s",
                "output": {"exit_code": None, **partial},
            }  # fmt: skip
        except OSError as error:
            message = f"{error.strerror}: {params.get('path') or params['argv'][0]}"
            return {"passed": False, "output": {"error": message, "exit_code": 127}, "reason": message}
        return {"passed": output.get("exit_code", 0) == 0, "output": output}

    def bash(self, params: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        file = self.root / ".line"
        file.write_text(params["line"])
        done = self._run(["bash", "-c", f". {file} 2>&1"], timeout_s)
        return {"exit_code": done.returncode, "output": done.stdout.decode(), "session_ended": False}

    def exec(self, params: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        done = self._run(params["argv"], timeout_s, params.get("stdin"), params.get("cwd") or ".")
        return {"exit_code": done.returncode, "stdout": done.stdout.decode(), "stderr": done.stderr.decode()}

    def read(self, params: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        raw = (self.root / params["path"]).read_bytes()
        return {"content": base64.b64encode(raw).decode() if params.get("encoding") == "base64" else raw.decode()}

    def write(self, params: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        path, content = self.root / params["path"], params["content"].encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content) if params.get("encoding") == "base64" else content)
        return {}

    def upload(self, params: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(params["archive"]))) as archive:
            for member in archive:
                path = self.root / params["path"] / member.name
                if member.isdir():
                    path.mkdir(parents=True, exist_ok=True)
                else:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    content = archive.extractfile(member)
                    assert content is not None, member.name
                    path.write_bytes(content.read())
                    path.chmod(member.mode)
        return {}

    def close_session(self, params: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        return {}

    def _run(
        self, argv: list[str], timeout_s: float, stdin: str | None = None, cwd: str = "."
    ) -> subprocess.CompletedProcess[bytes]:
        given = (stdin or "").encode()
        env = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(
            argv, input=given, capture_output=True, timeout=timeout_s, cwd=self.root / cwd, env=env, check=False
        )
