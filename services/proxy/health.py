"""Health of the parts that a replica needs, as last checked: Valkey, Postgres, leases, nodes, disk.

Every check has a deadline, and its result is kept in memory. So `/v1/health` and `/metrics` answer while the stores
are away. No action waits for a check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.proxy import metrics
from services.proxy.records.disk import StoreDisk
from services.proxy.records.store import Store
from shared.api.mesh import DiskView, HealthView, StoreView, ValkeyView
from shared.bus.connection import ValkeyClock
from shared.bus.keys import Role
from shared.bus.lease import is_held
from shared.bus.memory import StoreMemory, store_memory
from shared.bus.streams import newest
from shared.kinds.registry import all_kinds
from shared.messages.nodes import NODES, Bye, Heartbeat
from shared.policy.dispatch.backlog import PoolBacklog, cause_of
from shared.runtime import log
from shared.runtime.stack_state import StackError, read_state
from shared.store.database import Sessions, answers

_log = log.get(__name__)

LOOK_S: Final = 1.0
"""Interval of the checks, and the deadline of each."""
POSTGRES_LOOK_S: Final = 5.0
POSTGRES_DEADLINE_S: Final = 2.0
READY_DEADLINE_S: Final = 2.0
"""Shorter than the supervisor's probe waits (3 s), so that it reads the reason."""
NEARLY_FULL: Final = 0.8
MEBIBYTE: Final = 1 << 20

RESTARTS_LOOK_S: Final = 5.0

HEARTBEATS_READ: Final = 256
"""Newest entries of the stream of nodes that a check reads. It only needs one node that is ready."""
CALL: Final = "http"
"""A kind of external calls."""
STUCK_POOLS_SHOWN: Final = 8
"""The pools with the most waiting work."""
STUCK_CAUSES_SHOWN: Final = 3
"""The causes of each pool for which the most actions are stuck."""


class HealthMonitor:
    """Last known state of the parts. None: not checked yet, or unknown while Valkey is away."""

    def __init__(
        self, redis: Redis, store: Store, sessions: Sessions, disk: StoreDisk, clock: ValkeyClock, *, node_lost_s: float
    ) -> None:
        self._redis = redis
        self._store = store
        self._sessions = sessions
        self._disk = disk
        self._clock = clock
        self._node_lost_s = node_lost_s
        self.valkey: bool | None = None
        self.postgres: bool | None = None
        self.leader: bool | None = None
        self.planner: bool | None = None
        self.nodes: bool | None = None
        """True if a node is ready that executes more than external calls; None: unknown."""
        self.stuck: list[PoolBacklog] = []
        """Pools with stuck actions."""
        self.memory: StoreMemory | None = None

    async def watch_valkey(self) -> None:
        """Check Valkey, both leases, nodes, stuck actions and Valkey's memory. Runs until cancelled."""
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    leader, planner = await asyncio.gather(
                        is_held(self._redis, Role.DISPATCHER), is_held(self._redis, Role.PLANNER)
                    )
                    self.memory = await store_memory(self._redis)
                    self.nodes = await self._a_worker_is_ready()
                    self.stuck = [pool for pool in await self._store.pools() if pool.stuck]
                self._valkey_is(True)
                self.leader, self.planner = leader, planner
            except (RedisError, OSError) as error:  # the builtin TimeoutError is one of these
                self._valkey_is(False, str(error) or "no reply in time")
                self.leader = self.planner = self.nodes = None
            self._publish()
            await asyncio.sleep(LOOK_S)

    async def _a_worker_is_ready(self) -> bool:
        """Same rule as `/v1/nodes`: a message within `node_lost_s`, and no `Bye` after it. Reads no older entry.

        A node that only makes external calls does not count.
        """
        calls = all_kinds().kind(CALL).resources
        since = int((self._clock.unix() - self._node_lost_s) * 1000)
        stopped: set[tuple[str, str]] = set()
        for _, message in await newest(self._redis, NODES, HEARTBEATS_READ, since_ms=max(0, since)):
            if isinstance(message, Bye):
                stopped.add((message.node, message.incarnation))
                continue
            units = message.owned if isinstance(message, Heartbeat) else message.capacity
            if units.keys() - set(calls) and (message.node, message.incarnation) not in stopped:
                return True
        return False

    async def watch_postgres(self) -> None:
        """Check Postgres. Runs until cancelled."""
        while True:
            try:
                async with asyncio.timeout(POSTGRES_DEADLINE_S):
                    answered = await answers(self._sessions)
            except TimeoutError:
                answered = False
            if answered is not self.postgres:
                (_log.info if answered else _log.warning)("postgres_answers" if answered else "postgres_silent")
            self.postgres = answered
            metrics.STORE_UP.labels("postgres").set(answered)
            await asyncio.sleep(POSTGRES_LOOK_S)

    async def unready(self) -> str | None:
        """Return the reason why this replica cannot do its work now, or None. Reads Valkey; takes at most 2 s."""
        try:
            async with asyncio.timeout(READY_DEADLINE_S):
                leads = await is_held(self._redis, Role.DISPATCHER)
        except (RedisError, OSError):
            return "Valkey does not answer"
        return None if leads else "no proxy leads: what is accepted waits for a leader"

    def view(self) -> HealthView:
        """Return the state of all parts, and a sentence for each that has a problem."""
        memory, space = self.memory, self._disk.space
        return HealthView(
            valkey=ValkeyView(
                answers=self.valkey,
                used_bytes=memory.used_bytes if memory else None,
                bound_bytes=memory.bound_bytes if memory else None,
            ),
            postgres=StoreView(answers=self.postgres),
            disk=DiskView(
                path=str(space.path),
                free_bytes=space.free_bytes,
                total_bytes=space.total_bytes,
                reserve_bytes=self._disk.reserve_bytes,
            )
            if space is not None
            else None,
            leader=self.leader,
            planner=self.planner,
            problems=list(self._problems()),
        )

    def _problems(self) -> Sequence[str]:
        found: list[str] = []
        if self.valkey is False:
            found.append("Valkey does not answer: nothing is accepted, started or answered")
        if self.leader is False:
            found.append("no proxy leads: what is accepted waits for a leader")
        if self.planner is False:
            found.append("no planner holds its lease: pools follow what waits (zero-queue rule)")
        if self.postgres is False:
            found.append("Postgres does not answer: no batch history is written, and nothing is planned")
        if self.nodes is False:
            found.append("no worker node is ready: only external calls are executed, other work waits")
        if self.valkey:
            found.extend(_stuck(pool) for pool in self.stuck[:STUCK_POOLS_SHOWN])
        memory = self.memory
        if memory is not None and memory.used_share >= NEARLY_FULL:
            used, bound = memory.used_bytes // MEBIBYTE, memory.bound_bytes // MEBIBYTE
            found.append(f"Valkey holds {used} of {bound} MiB: submissions are answered 503 at the bound")
        if (shortage := self._disk.shortage()) is not None:
            found.append(shortage)
        return found

    def _valkey_is(self, answers: bool, why: str = "") -> None:
        if answers is not self.valkey:
            if answers:
                _log.info("valkey_recovered")
            else:
                _log.warning("valkey_unresponsive", error=why)
        self.valkey = answers

    def _publish(self) -> None:
        metrics.STORE_UP.labels("valkey").set(self.valkey is True)
        metrics.LEADER_UP.set(self.leader is True)
        metrics.PLANNER_UP.set(self.planner is True)
        if self.memory is not None:
            metrics.VALKEY_USED.set(self.memory.used_bytes)
            metrics.VALKEY_BOUND.set(self.memory.bound_bytes)
        if self._disk.space is not None:
            metrics.DISK_FREE.set(self._disk.space.free_bytes)
            metrics.DISK_TOTAL.set(self._disk.space.total_bytes)


def _stuck(pool: PoolBacklog) -> str:
    causes = list(dict.fromkeys(cause_of(stuck, pool.name) for stuck in pool.lacks))
    shown = causes[:STUCK_CAUSES_SHOWN]
    if len(causes) > len(shown):
        shown.append(f"and {len(causes) - len(shown):,} more")
    return f"actions in {pool.name} are stuck ({pool.stuck:,}): {'; '.join(shown)}"


async def watch_restarts(home: Path | None) -> None:
    """Publish how often this machine's supervisor has restarted each part. Returns at once without a home folder."""
    while home is not None:
        try:
            state = await asyncio.to_thread(read_state, home)
        except StackError as error:  # another user's stack; a file that is being repaired
            _log.warning("reading_restarts_failed", error=str(error))
            return
        for part in state.services if state is not None else ():
            metrics.RESTARTS.labels(part.name).set(part.restarts)
        await asyncio.sleep(RESTARTS_LOOK_S)
