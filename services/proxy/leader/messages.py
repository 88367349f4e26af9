"""Conversion of messages of nodes and the planner to stimuli of the dispatcher, and of its commands to messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from shared.api.images import familiar
from shared.bus.tail import Entry
from shared.kinds.registry import all_kinds
from shared.messages.actions import (
    CancelRequested,
    CloseRequested,
    ParkActionRequested,
    PriorityRequested,
    Request,
    ResumeActionRequested,
)
from shared.messages.batches import BatchEnded
from shared.messages.environments import LOCAL, EnvironmentsExpected
from shared.messages.grants import EnvironmentClosed, ImageRequested, InventoryRequested, Revoked, ShareSet
from shared.messages.grants import Grant as GrantMessage
from shared.messages.outcomes import (
    EnvironmentCreated,
    EnvironmentEnded,
    ImagesChanged,
    InventoryTaken,
    Parked,
    ServicesChanged,
    Started,
)
from shared.messages.quotas import QuotaChanged
from shared.messages.targets import CompletionExpected, TargetSet
from shared.policy.dispatch import stimuli
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.service_stimuli import ServicesReported
from shared.policy.dispatch.stimuli import Stimulus
from shared.policy.model.chunks import Chunk, ServedModel, measured
from shared.policy.model.formulation import AskInventory, CloseEnvironment, PullImage, Revoke, SetShare
from shared.policy.model.reports import HeldGrant
from shared.policy.resources.resource import lasting
from shared.runtime.units import Epoch, Seconds

HINT_FRESH_S: Final[Seconds] = 60.0
"""Seconds after which a hint that is read at a takeover counts as handled."""
MOST_UNITS: Final = 1 << 40
"""Most units of one resource that a node may report as taken: sums of them are exact in 64 bits, and as floats."""


def to_stimuli(now: Seconds, entry: Entry[Any]) -> Iterator[Stimulus]:
    """Yield the stimuli of one message, in order. Other messages, and old hints, have none."""
    match entry.message:
        case TargetSet() as one:
            yield stimuli.TargetReceived(one.pool, one.units, max(1, one.chunk))
        case BatchEnded() as one:
            yield stimuli.BatchEndReported(one.batch)
        case CompletionExpected() as one:
            yield stimuli.EstimateReceived(one.batch, one.at)
        case QuotaChanged() as one:
            yield QuotaSet(one.name, one.limits, entry.at)
        case EnvironmentsExpected() as one if now - entry.at <= HINT_FRESH_S:
            yield from to_foreseen(one)
        case message:
            yield from _of_node(message)


def _of_node(message: Any) -> Iterator[Stimulus]:
    """Yield the stimuli of a node's message."""
    match message:
        case Started() as one:
            yield stimuli.AttemptStarted(one.action, one.attempt)
        case Parked() as one:
            yield stimuli.AttemptParked(one.action, one.attempt)
        case ImagesChanged() as one:
            yield stimuli.ImagesReported(one.node, one.incarnation, tuple(one.added), tuple(one.removed))
        case ServicesChanged() as one:
            yield to_services(one)
        case EnvironmentCreated() as one:
            yield stimuli.CreationReported(one.node, one.incarnation, one.trajectory)
        case EnvironmentEnded() as one:
            yield stimuli.EnvironmentEndReported(one.node, one.incarnation, one.trajectory, one.ended, one.reason)
        case InventoryTaken() as one:
            yield stimuli.ImagesReported(one.node, one.incarnation, tuple(one.images))
            yield to_inventory(one)


def to_request_stimulus(asked: Request) -> Stimulus:
    """Convert a request about actions in the journal."""
    match asked:
        case CloseRequested():
            return stimuli.TrajectoryClosed(asked.trajectory)
        case PriorityRequested():
            return stimuli.PriorityChanged(asked.trajectory, asked.priority)
        case ParkActionRequested():
            return stimuli.ParkRequested(asked.action)
        case ResumeActionRequested():
            return stimuli.ResumeRequested(asked.action)
        case CancelRequested() if asked.batch:
            return stimuli.BatchCancelled(asked.batch, f"the batch was {asked.reason}")
        case CancelRequested():
            return stimuli.ActionCancelled(asked.action, asked.reason)


def to_inventory(taken: InventoryTaken) -> stimuli.InventoryReported:
    """Convert a node's inventory. Units and seconds that cannot be are left out."""
    held = {
        one.action: HeldGrant(
            one.stage,
            one.attempt,
            measured(one.running_s),
            _counts(one.units),
            one.queued,
            one.parked,
            one.resuming,
            measured(one.paused_s),
            one.service,
            tuple(one.numbers),
        )
        for one in taken.held
    }
    environments = {one.trajectory: _counts(one.units) for one in taken.environments}
    return stimuli.InventoryReported(taken.node, taken.incarnation, held, environments)


def _counts(units: Mapping[str, int]) -> dict[str, int]:
    """Leave out what cannot be a number of units."""
    return {name: count for name, count in units.items() if 0 <= count <= MOST_UNITS}


def to_services(changed: ServicesChanged) -> ServicesReported:
    """Convert a node's report of its model services. `ServedModel.on` leaves out what cannot be."""
    services = {
        one.service: ServedModel(
            tuple(one.degrees),
            one.concurrency,
            one.awake_gb,
            frozenset(Chunk(*chunk) for chunk in one.resident),
            frozenset(Chunk(*chunk) for chunk in one.unusable),
            awake_gb_by=one.awake_gb_by,
            restore_s=one.restore_s,
            evict_s=one.evict_s,
            asleep={Chunk(first, size): restore_s for first, size, restore_s in one.asleep},
        )
        for one in changed.services
    }
    restoring = {one.service: one.restoring_s for one in changed.services if one.restoring_s}
    return ServicesReported(
        changed.node,
        changed.incarnation,
        changed.resource,
        services,
        tuple(changed.device_gb),
        tuple(changed.bad),
        tuple(changed.released),
        restoring,
        changed.problems,
        {one.service: one.why_unusable for one in changed.services if one.why_unusable},
    )


def to_foreseen(expected: EnvironmentsExpected) -> Iterator[stimuli.ImagesExpected]:
    """Convert a hint: its images that may have to be pulled, for each runtime."""
    kinds, images = all_kinds(), tuple(familiar(image) for image in expected.images if image != LOCAL)
    for runtime in kinds.runtimes:
        if runtime.images and images:
            units = lasting(kinds.resources, runtime.units(expected))
            yield stimuli.ImagesExpected(images, expected.node_class, runtime.kind, units)


def to_message(epoch: Epoch, command: Revoke | AskInventory | SetShare | CloseEnvironment | PullImage) -> GrantMessage:
    """Convert a command that is only a message to a node."""
    match command:
        case Revoke():
            return Revoked(action=command.action, epoch=epoch, attempt=command.attempt, recall=command.recall)
        case AskInventory():
            return InventoryRequested(epoch=epoch)
        case SetShare():
            return ShareSet(epoch=epoch, resource=command.resource, units=command.units)
        case CloseEnvironment():
            return EnvironmentClosed(epoch=epoch, trajectory=command.trajectory)
        case PullImage():
            return ImageRequested(epoch=epoch, image=command.image)
