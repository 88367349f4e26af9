"""Specification of a trajectory's environment and of actions in it: the contract between the proxy and the nodes.

Also hints of coming environments: stream `trajectories`, read by the leader. Bounded and lossy.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from shared.messages.base import Message, Topic
from shared.runtime.patterns import IMAGE, SESSION, VARIABLE, WITHOUT_NUL, whole

LOCAL = "local"
"""The image name for no image: the environment uses the node's own toolchain, in the sandbox's walls."""

MODEL_PORT = 14747
"""Port of an environment's own model at its loopback address: outside of the range that the kernel chooses from, and
not one that servers under test usually listen on."""

MOST_SETUP = 64
MOST_VARIABLES = 256
MOST_LIVES_S = 86_400.0
MOST_VALUE = 65_536

Image = Annotated[str, msgspec.Meta(max_length=256, pattern=whole(IMAGE))]
Lives = Annotated[float, msgspec.Meta(gt=0, le=MOST_LIVES_S)]
Variable = Annotated[str, msgspec.Meta(pattern=whole(VARIABLE), max_length=128)]

Value = Annotated[str, msgspec.Meta(pattern=WITHOUT_NUL, max_length=MOST_VALUE)]
"""Value of a variable: any text without NUL, which cannot be passed to a program."""


class EnvironmentSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One environment as its trainer requests it. A node adds nothing to it."""

    image: Annotated[str, msgspec.Meta(min_length=1, max_length=256, pattern=whole(IMAGE))] = LOCAL
    """`local`, or an image of a container engine."""
    memory_mb: Annotated[int, msgspec.Meta(ge=32, le=1 << 20)] = 1024
    """Held on its node until it ends. A process that asks for more is ended."""
    disk_mb: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1024
    """Bound of the files that it writes."""
    pids: Annotated[int, msgspec.Meta(ge=8, le=65_536)] = 256
    """Processes and threads at once."""
    env: Annotated[dict[Variable, Value], msgspec.Meta(max_length=MOST_VARIABLES)] = {}
    """Variables of every command. No value has NUL."""
    setup: Annotated[list[str], msgspec.Meta(max_length=MOST_SETUP)] = []
    """Bash lines run once, in order, before the first action. One that fails ends the trajectory's first action as
    `refused`, with its output."""
    setup_timeout_s: Lives = 300.0
    """Limit of its creation, container and set-up lines together. Waiting for its turn and its image does not count."""
    workdir: Annotated[str, msgspec.Meta(pattern=WITHOUT_NUL, max_length=4096)] = ""
    """Directory in which commands start; empty: the image's own, or the private directory of a local one."""
    network: bool = False
    """It may reach the network. A `local` environment never may."""
    model: bool = False
    """It reaches the model of its trajectory at http://127.0.0.1:14747, without a key. The variables OPENAI_BASE_URL,
    OPENAI_API_BASE, OPENAI_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY of its commands are set for that. With
    `network` false it reaches nothing else."""
    read_only: bool = False
    """The image's files cannot be changed; /tmp and `workdir` can."""
    idle_s: Lives = 1800.0
    """Seconds after its last action until it ends."""
    lifetime_s: Lives = 21_600.0
    """Seconds after its first action until it ends, also while it is used."""


Encoding = Literal["utf-8", "base64"]
"""Representation of bytes in JSON."""

Path = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Session = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=whole(SESSION))]


class EnvironmentsExpected(Message, frozen=True, kw_only=True, tag="environments.expected.v1"):
    """A trajectory, or a rollout that will open some, was opened. Environments of these images will be needed."""

    images: list[str]
    node_class: str = ""
    """Class of their nodes; empty: any."""
    memory_mb: int = 1024
    """Memory that an environment of each will hold on its node."""


TRAJECTORIES: Topic[EnvironmentsExpected] = Topic("trajectories", EnvironmentsExpected, maxlen=1_024)
