"""Writes of grants: the dispatcher's decision as a message to its node, with what a new leader needs of it."""

from __future__ import annotations

from services.proxy.leader.requests import to_granted
from shared.bus.functions import Granting
from shared.bus.holds import Taking
from shared.bus.trajectories import StoredPlacement, pack
from shared.kinds.registry import all_kinds
from shared.messages.actions import ActionSubmitted
from shared.messages.base import Topic
from shared.messages.grants import Grant as GrantMessage
from shared.policy.model.formulation import Grant
from shared.runtime.units import Epoch


def mark_of(grant: Grant) -> str:
    """Return what the store keeps of an action's newest grant."""
    return f"{grant.attempt}:{grant.node}"


def granting_of(topic: Topic[GrantMessage], epoch: Epoch, grant: Grant, submitted: ActionSubmitted) -> Granting:
    """Return the write of a grant to the node of this stream."""
    payload = topic.encode(to_granted(epoch, grant, submitted))
    granting = Granting(topic.name, payload, grant.action, mark_of(grant))
    if grant.begins and submitted.environment is not None:
        placement = StoredPlacement(grant.node, all_kinds().lasting_units(submitted.environment))
        granting = granting._replace(trajectory=submitted.trajectory, placement=pack(placement))
    if grant.hold is not None:
        granting = granting._replace(taking=Taking(grant.hold, grant.rates))
    return granting
