"""Backend of SGLang: memory is released and resumed by tags (facts A3, read in SGLang 0.5.23).

SGLang checks none of the following. Its scheduler raises, and the server dies. So this backend never sends them:
  - a release while a request is running;
  - a resume of a tag that is not released.

The caller fences the engine. Evict: pause, wait until idle, release. Restore: resume in reverse order, continue.

SGLang reports no tags, so they are held here. `/ready` is 503 while it is paused, and 200 after it was continued. This
backend releases only paused engines and continues only whole ones, so 200 means: all memory is there. After a restart
of the manager, 503 means no more than "paused": such an engine is `unknown` and cannot be restored. The engines that
the manager started have ended with it. One given by its URL stays `unknown` until its operator restarts it.

SGLang needs the flags `--enable-memory-saver` and `--enable-weights-cpu-backup`; without the latter a release drops the
weights, and a resume brings garbage. `/health` generates a token, so it is used for the start only.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from services.gpu_manager.backends.engine_http import json_of, refused
from services.gpu_manager.backends.engine_server import EngineServer
from services.gpu_manager.backends.protocol import Capabilities, EngineError, Footprint, Level, Residency, check_level
from shared.runtime.http import HttpReply
from shared.runtime.units import Seconds

TAGS: Final = ("kv_cache", "weights", "cuda_graph")
"""Parts of the memory, in the order of a release."""
_RUNNING: Final = ("num_running_reqs", "num_waiting_reqs", "num_reqs")
"""Fields of a load: the first two of `/v1/loads`; the older `/get_load` has `num_reqs` and `num_waiting_reqs`."""
_NO_ROUTE: Final = frozenset({404, 405})
_BAD_GATEWAY: Final = 502
_TRIES: Final = 4
_RETRY_S: Final = 0.2


class SglangBackend:
    """An SGLang server. See `Backend`."""

    def __init__(self, server: EngineServer) -> None:
        self._server = server
        self.flags = Capabilities(
            levels=("asleep1",) if server.is_given else ("asleep1", "cold"),
            write_back=True,
            preserves_graphs=True,
            needs_idle=True,
            can_autowake=False,
            answers_at_work=True,
        )
        self._released: frozenset[str] | None = None
        """Tags that are released. None: unknown."""

    @property
    def url(self) -> str:
        return self._server.url

    async def prepare(self) -> None:
        """Start the engine, or find the given one, which must be ready."""
        if self._server.is_running:  # no look at its health: that sends a request to the scheduler
            await self._resume()
            return
        self._released = None
        await self._server.start(self._resume)

    async def evict(self, level: Level) -> None:
        """Stop the engine or release its memory. The caller has fenced it: a request after the release kills it."""
        check_level(self.flags, level)
        if level == "cold":
            await self.stop()
            return
        found = await self._state()
        if found == level:
            return
        if found != "resident":
            raise EngineError(f"the engine is {found}, so nothing can be released; evict it to cold, or restart it")
        with self._server.changing("evict asleep1"):
            await self._release()

    async def _release(self) -> None:
        before = await self._server.measured_bytes()
        await self._pause()
        self._released = None
        await self._server.call(
            "POST", "/release_memory_occupation", {"tags": list(TAGS)}, within_s=self._server.deadlines.evict_s
        )
        await self._server.check_alive()
        if await self._ready() is True:
            raise EngineError("SGLang is ready for requests after it was paused: something else has continued it")
        after = await self._server.measured_bytes()
        if before is not None and after is not None and after >= before:
            raise EngineError(
                f"SGLang answered 200, but its device memory went from {before} to {after} bytes; "
                "start it with --enable-memory-saver"
            )
        self._released = frozenset(TAGS)

    async def restore(self) -> None:
        """Resume what is released and continue, or start the engine if it is stopped."""
        if self._server.is_running:
            with self._server.changing("restore"):
                await self._resume()
        else:
            await self.prepare()

    async def residency(self) -> Residency:
        if not self._server.is_running:
            return "cold"
        try:
            return await self._state()
        except EngineError:
            return "unknown"

    async def footprint(self) -> Footprint:
        return await self._server.footprint()

    async def canary(self) -> None:
        """Send the canary, unless the engine is not resident: a request could reach a scheduler without memory."""
        if (state := await self._state()) != "resident":
            raise EngineError(f"the engine is {state}, so it gets no canary; restore it first")
        await self._server.canary()

    async def abort(self) -> None:
        await self._post("/abort_request", {"abort_all": True}, within_s=self._server.deadlines.read_s)

    async def stop(self) -> None:
        await self._server.stop()
        self._released = None

    async def ended(self) -> str:
        return await self._server.ended()

    # ---- parts -----------------------------------------------------------------------------------------------------

    async def _resume(self) -> None:
        if self._released is None:
            await self._find()
        within_s = self._server.deadlines.restore_s
        for tag in reversed(TAGS):
            released = self._released
            if released is not None and tag in released:
                self._released = None  # until the answer: a resume that is repeated kills the engine
                await self._server.call("POST", "/resume_memory_occupation", {"tags": [tag]}, within_s=within_s)
                self._released = released - {tag}
        if await self._ready() is not True:
            await self._post("/continue_generation", {}, within_s=within_s)

        async def is_ready() -> bool:
            return await self._ready() is not False

        await self._server.poll(
            is_ready, within_s=within_s, failure=f"SGLang was not ready {within_s:g} s after it was continued"
        )

    async def _state(self) -> Residency:
        ready = await self._ready()
        if self._released is None:
            return "resident" if ready else "unknown"
        if not self._released:
            return "unknown" if ready is False else "resident"
        return "asleep1" if not ready and self._released == frozenset(TAGS) else "unknown"

    async def _find(self) -> None:
        """Find out what is released of an engine of which nothing is known.

        Raises:
            EngineError: it is not ready, so that cannot be found out.
        """
        ready = await self._ready()
        if ready is False:
            raise EngineError(
                "SGLang is paused, and nothing shows which of its memory is released. A wrong guess would kill it: "
                "restart the engine"
            )
        if ready is None:
            await self._running()  # any server answers 404, and only SGLang shows its load
        await self._check_flags()
        self._released = frozenset()

    async def _check_flags(self) -> None:
        """Check the engine's flags where it shows them."""
        reply = await self._repeated("GET", "/server_info", None, self._server.deadlines.read_s)
        shown = json_of(reply) if reply.status == 200 else None
        for flag in ("enable_memory_saver", "enable_weights_cpu_backup"):
            if isinstance(shown, dict) and shown.get(flag) is False:
                raise EngineError(
                    f'start SGLang with --{flag.replace("_", "-")}, or declare it with "backend": "process"'
                )

    async def _ready(self) -> bool | None:
        """Return whether the engine takes requests; None: it has no such route, as in older versions."""
        reply = await self._repeated("GET", "/ready", None, self._server.deadlines.read_s)
        if reply.status in _NO_ROUTE:
            return None
        if reply.status not in (200, 503):
            raise refused("GET /ready", reply)
        return reply.status == 200

    async def _pause(self) -> None:
        """Pause the engine and wait until nothing runs. If that does not happen, continue it."""
        within_s = self._server.deadlines.evict_s
        await self._post("/pause_generation", {"mode": "abort"}, within_s=within_s)

        async def is_idle() -> bool:
            if await self._running() > 0:
                return False
            await asyncio.sleep(self._server.deadlines.settle_s)  # the reading can be older than the last batch
            return await self._running() == 0

        try:
            await self._server.poll(
                is_idle, within_s=within_s, failure=f"SGLang was not idle {within_s:g} s after it was paused"
            )
        except EngineError:
            await self._post("/continue_generation", {}, within_s=self._server.deadlines.read_s)
            raise

    async def _running(self) -> int:
        """Return the number of running and waiting requests.

        Raises:
            EngineError: it cannot be read. Then the engine must not be assumed to be idle.
        """
        within_s = self._server.deadlines.read_s
        reply = await self._repeated("GET", "/v1/loads", None, within_s)
        loads = _field(json_of(reply), "loads")
        if reply.status in _NO_ROUTE:
            reply = await self._repeated("GET", "/get_load", None, within_s)
            loads = json_of(reply)
        if reply.status != 200 or not isinstance(loads, list):
            raise refused("the reading of SGLang's load", reply)
        counts = [count for load in loads for name in _RUNNING if isinstance(count := _field(load, name), int)]
        if not counts:
            raise refused("the reading of SGLang's load", reply)
        return sum(counts)

    async def _post(self, target: str, body: object, *, within_s: Seconds) -> None:
        """Send a request that may be repeated, and must be answered with 200."""
        reply = await self._repeated("POST", target, body, within_s)
        if reply.status != 200:
            raise refused(f"POST {target}", reply)

    async def _repeated(self, method: str, target: str, body: object, within_s: Seconds) -> HttpReply:
        """Send a request that may be repeated; repeat it after a 502 (Relax#282). `within_s`: limit of each try."""
        reply = await self._server.send(method, target, body, within_s=within_s)
        for _ in range(_TRIES - 1):
            if reply.status != _BAD_GATEWAY:
                break
            await asyncio.sleep(_RETRY_S)
            reply = await self._server.send(method, target, body, within_s=within_s)
        return reply


def _field(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, dict) else None
