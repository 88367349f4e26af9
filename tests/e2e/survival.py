"""State that a fault must not destroy: environments, a running program; and processes that no parent has reaped."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass
from typing import Any

import aiohttp
import psutil

from shared.runtime.identity import Identity
from tests.e2e.trainer import BROKEN, PASSING, PAUSE_S

Json = dict[str, Any]
TIMEOUT_S = 120.0
WAIT_S = 30

FURNISH = (
    "greeting=hello; sum() { echo $(($1 + $2)); }; mkdir -p deep/er; cd deep; echo kept > er/file; "
    "while :; do echo x >> ../ticks; sleep 0.05; done 2>/dev/null & child=$!"
)
"""A variable, a function, a directory, a file, and a background process that continues while the environment runs.

Its stderr is closed: the end of an action kills the `sleep` of that moment, and bash reports that when it may."""
PROBE = 'echo "$greeting $(sum 2 3) $PWD $(cat er/file)"; kill -0 $child && echo alive; sleep 0.2; wc -l < ../ticks'


class Caller:
    """Calls of one proxy that are repeated while it is away; each has a request id, so that a repeat is harmless."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._name = uuid.uuid4().hex
        self._numbers = 0
        self.opened: list[str] = []
        """Every trajectory so far."""

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Json]:
        """(status, JSON) of a call that is harmless to repeat."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    async with self._http.request(method, path, json=body) as response:
                        if response.status not in PASSING:
                            return response.status, await response.json(content_type=None)
                except BROKEN:
                    pass
                await asyncio.sleep(PAUSE_S)

    def fresh(self) -> str:
        """A request id."""
        self._numbers += 1
        return f"call-{self._name}-{self._numbers}"

    async def act(self, trajectory: str, line: str, timeout_s: float = 60.0) -> Json:
        """One bash line's answer, or the problem that refuses it."""
        body = {"kind": "env.bash", "params": {"line": line}, "timeout_s": timeout_s, "request_id": self.fresh()}
        return await self._answer(f"/v1/trajectories/{trajectory}/actions", body)

    async def run(self, code: str, timeout_s: float = 60.0) -> Json:
        """The answer of a one-shot program."""
        body = {"kind": "code.run", "params": {"code": code}, "timeout_s": timeout_s, "request_id": self.fresh()}
        return await self._answer("/v1/actions", body)

    async def _answer(self, path: str, body: Json) -> Json:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                status, answer = await self.call("POST", f"{path}?wait={WAIT_S}", body)
                if status != 202:
                    return {"status": status, **answer}

    async def open(self, **environment: Any) -> str:
        """A fresh trajectory."""
        status, view = await self.call(
            "POST", "/v1/trajectories", {"environment": {"memory_mb": 64, **environment}, "request_id": self.fresh()}
        )
        assert status in (200, 201), view
        self.opened.append(str(view["id"]))
        return self.opened[-1]

    async def close(self, trajectory: str) -> None:
        status, view = await self.call("DELETE", f"/v1/trajectories/{trajectory}")
        assert status == 200, view


@dataclass
class Episode:
    """A trajectory with state of every sort in its environment."""

    caller: Caller
    trajectory: str
    ticks: int = 0

    @classmethod
    async def begin(cls, caller: Caller, **environment: Any) -> Episode:
        episode = cls(caller, await caller.open(**environment))
        furnished = await caller.act(episode.trajectory, FURNISH)
        assert furnished.get("ended") == "ok", furnished
        await episode.check_intact()
        return episode

    async def check_intact(self) -> None:
        """Shell, variables, function, directory, file and background process are unchanged, and continue."""
        answer = await self.caller.act(self.trajectory, PROBE)
        assert answer.get("ended") == "ok", answer
        printed, alive, ticks = answer["output"]["output"].splitlines()
        greeting, number, place, kept = printed.split()
        assert (greeting, number, kept, alive) == ("hello", "5", "kept", "alive"), answer
        assert place.endswith("/deep"), answer
        assert int(ticks) > self.ticks, "its background process is suspended"
        self.ticks = int(ticks)


def all_end(processes: list[Identity]) -> bool:
    """Return whether all of them end within half a minute."""
    deadline = time.monotonic() + 30
    while any(process.alive() for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def zombies(pid: int) -> list[int]:
    """Descendants that ended more than a moment ago and were not reaped, though their parent is not frozen.

    A background process of an environment may end while the environment freezes; its parent reaps it after the thaw.
    """
    found = _zombies(pid)
    return sorted(found & _zombies(pid)) if found else []


def _zombies(pid: int) -> set[int]:
    found = set()
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if process.status() == psutil.STATUS_ZOMBIE and not _is_frozen(process.parent()):
                found.add(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def _is_frozen(process: psutil.Process | None) -> bool:
    """Return whether a process cannot run: the freezer of cgroup v1 shows as disk sleep, SIGSTOP as stopped.

    Ten looks in 0.2 s, because a running process is in disk sleep only for moments.
    """
    for _ in range(10):
        if process is None or process.status() not in (psutil.STATUS_DISK_SLEEP, psutil.STATUS_STOPPED):
            return False
        time.sleep(0.02)
    return True


async def until_no_zombies(pid: int) -> None:
    """Wait until no descendant of a process is a zombie; half a minute at most."""
    async with asyncio.timeout(30):
        while zombies(pid):  # noqa: ASYNC110  # the kernel reports only to parents
            await asyncio.sleep(0.1)
