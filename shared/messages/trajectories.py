"""What is coming, for those who prepare: stream `trajectories`, tailed by the leader. Bounded and lossy: a hint."""

from __future__ import annotations

from shared.messages.base import Message, Topic


class EnvironmentsExpected(Message, frozen=True, kw_only=True, tag="environments.expected.v1"):
    """A trajectory was opened, or a rollout that will open some: environments of these images will be asked for."""

    images: list[str]
    node_class: str = ""
    """On nodes of this class; empty: of any."""
    memory_mb: int = 1024
    """What an environment of each will hold of its node."""


TRAJECTORIES: Topic[EnvironmentsExpected] = Topic("trajectories", EnvironmentsExpected, maxlen=1_024)
