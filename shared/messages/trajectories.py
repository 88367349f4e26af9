"""Hints of coming environments: stream `trajectories`, read by the leader. Bounded and lossy."""

from __future__ import annotations

from shared.messages.base import Message, Topic


class EnvironmentsExpected(Message, frozen=True, kw_only=True, tag="environments.expected.v1"):
    """A trajectory, or a rollout that will open some, was opened. Environments of these images will be needed."""

    images: list[str]
    node_class: str = ""
    """Class of their nodes; empty: any."""
    memory_mb: int = 1024
    """Memory that an environment of each will hold on its node."""


TRAJECTORIES: Topic[EnvironmentsExpected] = Topic("trajectories", EnvironmentsExpected, maxlen=1_024)
