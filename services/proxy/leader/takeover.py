"""Takeover: journal, store and outcomes rebuild the dispatcher before anything is granted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from services.proxy.leader.leader import Leader
from services.proxy.records.lease_records import is_lease
from shared.api.requests import StageReport
from shared.bus.actions import read_continuations
from shared.bus.batches import first_arrival
from shared.bus.brakes import read_brakes
from shared.bus.nodes import read_hellos
from shared.bus.quota_estimates import read_estimates
from shared.bus.quotas import read_quotas
from shared.bus.tail import Entry, Tail
from shared.bus.trajectories import read_placements, read_priorities, read_statuses
from shared.messages import leases
from shared.messages.actions import ACTIONS, ActionSubmitted, CloseRequested
from shared.messages.batches import BATCHES
from shared.messages.environments import TRAJECTORIES
from shared.messages.nodes import NODES
from shared.messages.outcomes import OUTCOMES
from shared.messages.quotas import QUOTA_CHANGES
from shared.messages.targets import COMPLETIONS, TARGETS
from shared.policy.dispatch.quota_stimuli import AmountRestored, BrakeRestored, HoldRestored, LevelRestored, QuotaSet
from shared.policy.dispatch.stimuli import (
    ActionRestored,
    FirstArrivalRestored,
    PlacementRestored,
    PriorityChanged,
    TrajectoryRestored,
)
from shared.policy.model.formulation import StageAct
from shared.runtime import log

_log = log.get(__name__)

LEADER_STREAMS = (ACTIONS, NODES, BATCHES, TARGETS, COMPLETIONS, TRAJECTORIES, QUOTA_CHANGES, OUTCOMES)
"""Streams that a leader reads, in the order in which one read returns their entries."""
HANDLED_AT_ONCE: Final = 1024
"""Entries of a stream handled at once; some 50 ms."""
READS: Final = 10
"""Reads of the quotas, at most, until none was changed meanwhile."""

_carried = msgspec.json.Decoder(list[StageReport])


async def take_over(redis: Redis, reader: Redis, leader: Leader) -> Tail:
    """Read the whole state; return the tail that continues from there.

    The journal comes first, as a whole, because an outcome has no meaning before its action is known. Placements of
    environments and ended trajectories are read before its entries are handled. Leases come before other entries, with
    their grants: one whose caller has gone gives back all that it took. Then follow each action's last grant, then the
    newest hello of each node, then nodes and outcomes as far back as they are kept, by time: a Bye would otherwise end
    attempts whose outcomes came before it. Nothing ends by the time meanwhile. Nodes get no grants before their
    inventories, which are requested as their hellos or heartbeats are read.
    """
    changes = await _restore_quotas(redis, reader, leader)
    journal = Tail(reader, {ACTIONS: "0"}, count=2048)
    entries = await _drain(journal)
    requests = [entry for entry in entries if isinstance(entry.message, ActionSubmitted)]
    await _first_arrivals(redis, leader, requests)
    closing = {entry.message.trajectory for entry in entries if isinstance(entry.message, CloseRequested)}
    await _restore_placements(redis, leader, {entry.message.trajectory for entry in requests} - {""}, closing)
    acquired = {entry.id: entry for entry in requests if is_lease(entry.message)}
    await _handle(leader, list(acquired.values()))
    await _restore_actions(redis, leader, acquired.values())
    await _handle(leader, [entry for entry in entries if entry.id not in acquired])
    await _restore_priorities(redis, leader, {entry.message.trajectory for entry in requests} - {""})
    await _restore_actions(redis, leader, [entry for entry in requests if entry.id not in acquired])
    hellos = [Entry(NODES.name, stored.entry, stored.hello, -1) for stored in await read_hellos(redis)]
    await _handle(leader, hellos)
    start = {topic: "0" for topic in LEADER_STREAMS if topic is not ACTIONS and topic is not OUTCOMES}
    start[QUOTA_CHANGES] = changes
    others = Tail(reader, start, count=2048)
    entries = await _drain(others)
    outcomes = Tail(reader, {OUTCOMES: "0"}, count=2048)
    reports = [entry for entry in entries if entry.topic == NODES.name] + await _drain(outcomes)
    await _handle(leader, sorted(reports, key=lambda entry: (entry.at, entry.topic == NODES.name)))
    await _handle(leader, [entry for entry in entries if entry.topic != NODES.name])
    _log.info("takeover_finished", unanswered=len(leader.unanswered), nodes=len(leader.dispatcher.node_names()))
    ids = {ACTIONS: journal.last(ACTIONS), OUTCOMES: outcomes.last(OUTCOMES)}
    positions = {topic: ids.get(topic) or others.last(topic) for topic in LEADER_STREAMS}
    return Tail(reader, positions, decided_by=leader.epoch)


async def _handle(leader: Leader, entries: list[Entry[Any]]) -> None:
    """Handle the entries in parts. Handling all at once would block for seconds the event loop, which renews the
    lease.
    """
    for start in range(0, len(entries), HANDLED_AT_ONCE):
        leader.take(entries[start : start + HANDLED_AT_ONCE], ticks=False)
        await asyncio.sleep(0)
        while leader.dispatcher.unfinished:  # before grants are restored: what waits is answered at once
            leader.go_on()
            await asyncio.sleep(0)


async def _drain(tail: Tail) -> list[Entry[Any]]:
    entries: list[Entry[Any]] = []
    while more := await tail.read(block=False):
        entries += more
    return entries


async def _restore_quotas(redis: Redis, reader: Redis, leader: Leader) -> str:
    """Restore limits, levels of rates and what attempts hold, before any action is known. Returns the position of the
    changes that follow.

    Of earlier changes only the time counts: it ends exhaustion that began before. Their limits have been replaced, and
    would take from levels what a smaller burst has no room for.
    """
    tail = Tail(reader, {QUOTA_CHANGES: "0"}, count=2048)
    changes, stored = await _drain(tail), await read_quotas(redis)
    for _ in range(READS):
        if not (more := await _drain(tail)):
            break
        changes, stored = changes + more, await read_quotas(redis)
    for name, limits in stored.limits.items():
        leader.handle(QuotaSet(name, limits))
    for level in stored.levels:
        leader.handle(LevelRestored(*level))
    for hold in stored.holds:
        leader.handle(HoldRestored(hold))
    for name, brake in (await read_brakes(redis)).items():
        leader.handle(BrakeRestored(name, brake))
    for key, estimate in (await read_estimates(redis)).items():
        leader.handle(AmountRestored(key, estimate))
    for name, changed_s in {entry.message.name: entry.at for entry in changes}.items():
        if name in stored.limits:
            leader.handle(QuotaSet(name, stored.limits[name], changed_s))
    return tail.last(QUOTA_CHANGES)


async def _first_arrivals(redis: Redis, leader: Leader, requests: list[Entry[ActionSubmitted]]) -> None:
    """Restore first arrivals. EBF keys depend on a batch's first arrival, which may have been answered long ago."""
    batches = {entry.message.batch: entry.message for entry in requests if entry.message.batch}
    for name, message in batches.items():
        first_at = await first_arrival(redis, name)
        if first_at is not None:
            timeouts = tuple(stage.timeout_s for stage in message.stages)
            leader.handle(FirstArrivalRestored(name, first_at, timeouts))


async def _restore_placements(redis: Redis, leader: Leader, acting: set[str], closing: set[str]) -> None:
    """Restore placements and ended trajectories before actions are handled; otherwise an environment might begin twice.

    The environment of a closed trajectory may still exist: its node's inventory will show it. `closing`: trajectories
    that the journal itself closes, in its own order.
    """
    async for placements in read_placements(redis):
        await _restore_ends(redis, leader, placements.keys() - closing)
        acting -= placements.keys()
        for trajectory, placement in placements.items():
            leader.handle(PlacementRestored(trajectory, placement.node, placement.units))
    await _restore_ends(redis, leader, acting - closing)


async def _restore_ends(redis: Redis, leader: Leader, trajectories: Iterable[str]) -> None:
    for trajectory, (state, reason) in (await read_statuses(redis, sorted(trajectories))).items():
        if state != "open":
            why = f"the trajectory is {state}: {reason}" if state else "the trajectory ended long ago"
            leader.handle(TrajectoryRestored(trajectory, why))


async def _restore_priorities(redis: Redis, leader: Leader, acting: set[str]) -> None:
    """Restore priorities that changed after actions were submitted: the former leader has deleted these entries."""
    for trajectory, priority in (await read_priorities(redis, sorted(acting))).items():
        leader.handle(PriorityChanged(trajectory, priority))


async def _restore_actions(redis: Redis, leader: Leader, requests: Iterable[Entry[ActionSubmitted]]) -> None:
    """Restore each action's stage, its last grant, and the times of earlier stages."""
    actions = [entry.message.action for entry in requests if entry.message.action in leader.unanswered]
    for start in range(0, len(actions), 512):
        chunk = actions[start : start + 512]
        for action, found in zip(chunk, await read_continuations(redis, chunk), strict=True):
            if found is not None:
                leader.unanswered[action].resume = found.resume
                leader.unanswered[action].leased = found.node == leases.NODE
                acts = tuple(_act(report) for report in _carried.decode(found.carried)) if found.carried else ()
                leader.handle(ActionRestored(action, found.stage, found.attempt, acts, found.node, found.wanted))


def _act(report: StageReport) -> StageAct:
    return StageAct(
        report.name,
        report.queue_s,
        report.execution_s,
        report.node,
        report.attempts,
        report.units,
        report.usage,
        report.parked_s,
        report.restore_s,
    )
