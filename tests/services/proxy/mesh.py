"""Makers of stream entries for a leader, and a recorder of its writes."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
from redis.asyncio import Redis

from services.cpu_manager.kinds import IN_ENVIRONMENTS, MEMORY, ONLY_LOOKS, RESOURCES
from services.proxy.leader.interpreter import Interpreter
from services.proxy.leader.leader import Leader
from services.proxy.leader.writes import Discard, Forget, Write
from shared.bus.connection import ValkeyClock
from shared.bus.functions import Advancing, Answering, Granting
from shared.bus.tail import Entry
from shared.messages.actions import ACTIONS, ActionSubmitted, StageWork
from shared.messages.base import Message, Topic
from shared.messages.environments import EnvironmentSpec
from shared.messages.grants import Grant, Granted, grants_topic
from shared.messages.nodes import NODES, Hello
from shared.messages.outcomes import OUTCOMES, EnvironmentEnded, EnvironmentHeld, Finished, GrantHeld, InventoryTaken
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.model.results import AttemptResult
from shared.runtime.units import Epoch, Seconds

EPOCH: Epoch = 7
START: Seconds = 1_000_000.0


class StillClock(ValkeyClock):
    """Valkey's time, set by the test."""

    def __init__(self, now: Seconds = START) -> None:
        super().__init__(0.0)
        self.now = now

    def unix(self) -> Seconds:
        return self.now


class WriteRecorder(Interpreter):
    """Records writes instead of executing them."""

    def __init__(self) -> None:
        super().__init__(Redis(), EPOCH, lambda _, __: None, keep_batch_s=600.0)
        self.writes: list[Write] = []

    def put(self, write: Write, tenant: str = "", names: tuple[str, ...] = ()) -> None:
        self.writes.append(write)

    def put_after_all(self, write: Write) -> None:
        self.writes.append(write)

    def take(self) -> list[Write]:
        """Return the writes recorded since the last call."""
        taken, self.writes = self.writes, []
        return taken


def messages_to(writes: list[Write], node: str = "n", incarnation: str = "1") -> list[Grant]:
    """Messages to one incarnation of a node."""
    topic = grants_topic(node, incarnation)
    return [topic.decode(one.payload) for one in writes if isinstance(one, Granting) and one.stream == topic.name]


def granted(writes: list[Write], node: str = "n") -> list[Granted]:
    return [one for one in messages_to(writes, node) if isinstance(one, Granted)]


def answers(writes: list[Write]) -> list[Answering]:
    return [one for one in writes if isinstance(one, Answering)]


def steps(writes: list[Write]) -> list[Advancing]:
    return [one for one in writes if isinstance(one, Advancing)]


def discards(writes: list[Write]) -> list[str]:
    return [one.entry for one in writes if isinstance(one, Discard)]


def forgotten(writes: list[Write]) -> list[Forget]:
    return [one for one in writes if isinstance(one, Forget)]


def leader_of(interpreter: Interpreter, clock: ValkeyClock) -> Leader:
    return Leader(EPOCH, Dispatcher(specs=RESOURCES), interpreter, clock, lambda _: 60)


# ---- messages ------------------------------------------------------------------------------------------------------


def stage(name: str = "run", *, kind: str = "code.run", cores: int = 1, timeout_s: float = 10.0) -> StageWork:
    return StageWork(
        name=name, kind=kind, pool="cores@default", cost={"cores": (cores, cores)}, timeout_s=timeout_s, params=b"{}"
    )


def submitted(action: str, *stages: StageWork, batch: str = "", budget_s: float = 600.0) -> ActionSubmitted:
    return ActionSubmitted(
        action=action,
        tenant="ada",
        task="t" if batch else "",
        batch=batch,
        stages=stages or (stage(),),
        budget_s=budget_s,
        timeout_score=-1.0,
    )


SPEC = EnvironmentSpec(memory_mb=512)


def acting(action: str, trajectory: str = "t1", *, kind: str = "env.bash", spec: EnvironmentSpec = SPEC) -> Any:
    """An action in a trajectory's environment."""
    work = msgspec.structs.replace(stage(kind=kind), repeatable=kind in ONLY_LOOKS)
    return msgspec.structs.replace(submitted(action, work), trajectory=trajectory, environment=spec)


def hello(node: str = "n", incarnation: str = "1", *, cores: int = 4, memory_mb: int = 0) -> Hello:
    """`memory_mb`: for environments; 0: the node creates none."""
    capacity, kinds = {"cores": cores}, ["code.run"]
    if memory_mb:
        capacity[MEMORY] = memory_mb
        kinds += IN_ENVIRONMENTS
    return Hello(
        node=node, incarnation=incarnation, node_class="default", capacity=capacity, kinds=kinds,
        runtimes=["local"] if memory_mb else [],
    )  # fmt: skip


def inventory(
    *held: GrantHeld, node: str = "n", incarnation: str = "1", epoch: Epoch = EPOCH, environments: tuple[str, ...] = ()
) -> InventoryTaken:
    """`environments`: trajectories whose environments exist there."""
    there = [EnvironmentHeld(trajectory=name, units={MEMORY: SPEC.memory_mb}) for name in environments]
    return InventoryTaken(node=node, incarnation=incarnation, epoch=epoch, held=list(held), environments=there)


def ended(trajectory: str = "t1", how: Any = "expired", *, node: str = "n", reason: str = "its time is over") -> Any:
    return EnvironmentEnded(node=node, incarnation="1", trajectory=trajectory, ended=how, reason=reason)


def held(action: str, *, attempt: int = 1, stage: int = 0) -> GrantHeld:
    return GrantHeld(action=action, epoch=EPOCH - 1, attempt=attempt, stage=stage, units={"cores": 1}, running_s=1.0)


def outcome(action: str, *, node: str = "n", attempt: int = 1, stage: int = 0, **rest: Any) -> Finished:
    """An outcome; a verdict unless `rest` changes that."""
    fields = {"status": "ok", "passed": True, "score": 1.0, "execution_s": 0.5, **rest}
    result = AttemptResult(**{name: fields.pop(name) for name in AttemptResult.__struct_fields__ if name in fields})
    return Finished(
        action=action, node=node, incarnation="1", epoch=EPOCH, attempt=attempt, stage=stage, result=result, **fields
    )


_numbers = itertools.count(1)


def entry(topic: Topic[Any], message: Message, *, at: Seconds = START, index: int = -1) -> Entry[Any]:
    """An entry as read from a stream."""
    return Entry(topic.name, f"{round(at * 1000)}-{next(_numbers)}", message, index)


def journalled(message: Message, *, at: Seconds = START, index: int = -1) -> Entry[Any]:
    return entry(ACTIONS, message, at=at, index=index)


def from_node(message: Message, *, at: Seconds = START) -> Entry[Any]:
    """An entry that a node has sent: about itself, or about its grants."""
    told_outcomes = isinstance(message, Finished | InventoryTaken | EnvironmentEnded)
    return entry(OUTCOMES if told_outcomes else NODES, message, at=at)
