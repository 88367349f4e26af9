"""Becoming the leader: journal, store and outcomes rebuild the dispatcher before anything is granted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from services.proxy.leader.leader import LED, Leader
from shared.api.requests import StageReport
from shared.bus.connection import ValkeyClock, command
from shared.bus.tail import Entry, Tail
from shared.bus.trajectories import read_placements, read_standings
from shared.messages.actions import ACTIONS, ActionSubmitted, CloseAsked
from shared.messages.outcomes import OUTCOMES
from shared.policy.model.formulation import StageAct
from shared.runtime import log

_log = log.get(__name__)

TAKEN_AT_ONCE: Final = 1024
"""Entries of a stream; some 50 ms."""

_carried = msgspec.json.Decoder(list[StageReport])


async def take_over(redis: Redis, reader: Redis, leader: Leader, clock: ValkeyClock) -> Tail:
    """Read everything there is; returns the tail that goes on from there.

    The journal comes first and whole (an outcome means nothing before its action is known; where its environment stands
    and whether its trajectory has ended is looked up before), then what is known of each action's last grant, then
    nodes, targets and outcomes from as far back as they are kept. Nodes get nothing before their inventories, which are
    asked for as their hellos are read.
    """
    journal = Tail(reader, {ACTIONS: "0"}, count=2048)
    entries = await _drain(journal)
    requests = [entry for entry in entries if isinstance(entry.message, ActionSubmitted)]
    await _first_arrivals(redis, leader, requests)
    closing = {entry.message.trajectory for entry in entries if isinstance(entry.message, CloseAsked)}
    await _homes(redis, leader, {entry.message.trajectory for entry in requests} - {""}, closing)
    await _take(leader, entries)
    await _resume(redis, leader, requests, clock)
    start = {topic: "0" for topic in LED if topic is not ACTIONS and topic is not OUTCOMES}
    others = Tail(reader, start, count=2048)
    await _take(leader, await _drain(others))
    outcomes = Tail(reader, {OUTCOMES: "0"}, count=2048)
    await _take(leader, await _drain(outcomes))
    _log.info("took_over", unanswered=len(leader.unanswered), nodes=len(leader.dispatcher.cluster.nodes))
    ids = {ACTIONS: journal.last(ACTIONS), OUTCOMES: outcomes.last(OUTCOMES)}
    return Tail(reader, {topic: ids.get(topic) or others.last(topic) for topic in LED})


async def _take(leader: Leader, entries: list[Entry[Any]]) -> None:
    """All at once would stop the loop for seconds, on which the lease is renewed."""
    for start in range(0, len(entries), TAKEN_AT_ONCE):
        leader.take(entries[start : start + TAKEN_AT_ONCE])
        await asyncio.sleep(0)


async def _drain(tail: Tail) -> list[Entry[Any]]:
    entries: list[Entry[Any]] = []
    while more := await tail.read(block=False):
        entries += more
    return entries


async def _first_arrivals(redis: Redis, leader: Leader, requests: list[Entry[ActionSubmitted]]) -> None:
    """EBF keys rest on a batch's first arrival, which may have been answered long ago."""
    batches = {entry.message.batch: entry.message for entry in requests if entry.message.batch}
    for name, message in batches.items():
        first_ms = await command(redis, "HGET", f"batch:{name}", "first_ms")
        if first_ms is not None:
            timeouts = [stage.timeout_s for stage in message.stages]
            leader.dispatcher.cluster.batches.first_arrival(name, int(first_ms) / 1000, timeouts)


async def _homes(redis: Redis, leader: Leader, acting: set[str], closing: set[str]) -> None:
    """Which trajectories have ended, and where environments stand: before actions are met, or one might begin anew.

    The environment of one that was closed may stand yet: its node's inventory will show it. `closing`: the journal says
    in its own order that these were closed.
    """
    async for placements in read_placements(redis):
        await _ends(redis, leader, placements.keys() - closing)
        acting -= placements.keys()
        for trajectory, placement in placements.items():
            leader.dispatcher.trajectory_placed(trajectory, placement.node, placement.units)
    await _ends(redis, leader, acting - closing)


async def _ends(redis: Redis, leader: Leader, trajectories: Iterable[str]) -> None:
    for trajectory, (state, reason) in (await read_standings(redis, sorted(trajectories))).items():
        if state != "open":
            why = f"the trajectory is {state}: {reason}" if state else "the trajectory ended long ago"
            leader.dispatcher.trajectory_ended(trajectory, why)


async def _resume(redis: Redis, leader: Leader, requests: list[Entry[ActionSubmitted]], clock: ValkeyClock) -> None:
    """Where each action stood: its stage, its last grant, what earlier stages took."""
    actions = [entry.message.action for entry in requests if entry.message.action in leader.unanswered]
    for start in range(0, len(actions), 512):
        chunk = actions[start : start + 512]
        pipe = redis.pipeline(transaction=False)
        for action in chunk:
            pipe.hmget(f"action:{action}", ["g", "s", "c"])
        for action, (grant, stage, carried) in zip(chunk, await pipe.execute(), strict=True):
            if action not in leader.dispatcher.action_states or (grant is None and stage is None):
                continue
            attempt, _, node = (grant or b"0:").decode().partition(":")
            acts = [_act(report) for report in _carried.decode(carried)] if carried else []
            leader.dispatcher.resumed(clock.unix(), action, int(stage or 0), int(attempt), acts, node)


def _act(report: StageReport) -> StageAct:
    return StageAct(report.name, report.queue_s, report.execution_s, report.node, report.attempts, report.units)
