"""Images on nodes: which a node has, which it is getting, and which node pulls one before it is asked for.

Laws, held by tests/shared/policy/resources/test_residency.py:
  - an environment goes to a node that has its image, else to one that is getting it, else to any; memory decides among
    equals (`place_home`);
  - an image that is expected is pulled by one node: the one where its environments are predicted to be placed;
  - what is remembered of a node is bounded, and a promise expires.

A node that lacks an image can make its environments all the same: it pulls first. So none of this can lose work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

COMING_S = 300.0
"""A promise lasts so long: the environments that were expected have begun by then, or nobody knows when they will."""
MOST_COMING = 4096
"""Images that are expected on one node; the oldest are forgotten."""
MOST_HERE = 2048
"""Images of one node that are known; it reports no more."""

AVOIDED_S = 60.0
"""A node that could not make an environment of an image that it lacks comes last for so long."""

HERE, COMING, ABSENT, AVOIDED = 0, 1, 2, 3


class Promise(NamedTuple):
    """An image that a node was told to pull, or pulls for an environment."""

    until_s: float
    units: Mapping[str, int]
    """What environments of it that have not begun will hold there."""


@dataclass(slots=True)
class Residency:
    """The images of one node."""

    here: set[str] = field(default_factory=set)
    coming: dict[str, Promise] = field(default_factory=dict)
    """By age, the oldest first."""
    failed: dict[str, float] = field(default_factory=dict)
    """Image -> until when the node is avoided for it; by age, the oldest first."""

    def rank(self, image: str, now: float) -> int:
        """`HERE`, `COMING`, `ABSENT` or `AVOIDED`. An environment that needs no image finds it everywhere."""
        if not image or image in self.here:
            return HERE
        if self.failed.get(image, now) > now:
            return AVOIDED
        promise = self.coming.get(image)
        return COMING if promise is not None and promise.until_s > now else ABSENT

    def promised(self, resource: str, now: float) -> int:
        """Units that expected environments will hold. O(promises)."""
        self._expire(now)
        return sum(promise.units.get(resource, 0) for promise in self.coming.values())

    def expect(self, image: str, units: Mapping[str, int], now: float) -> None:
        """Environments of this image will be placed here; `units`: what one more of them will hold."""
        self._expire(now)
        known = self.coming.pop(image, None)
        held = dict(known.units) if known is not None else {}
        for name, count in units.items():
            held[name] = held.get(name, 0) + count
        self.coming[image] = Promise(now + COMING_S, held)
        while len(self.coming) > MOST_COMING:
            del self.coming[next(iter(self.coming))]

    def begun(self, image: str, units: Mapping[str, int], now: float) -> None:
        """One has begun here. Where the image is missing the node pulls it now, and others may follow."""
        known = self.coming.get(image)
        if known is not None:
            left = {name: max(0, count - units.get(name, 0)) for name, count in known.units.items()}
            self.coming[image] = known._replace(units=left)
        elif image and image not in self.here:
            self.expect(image, {}, now)

    def unmade(self, image: str, now: float) -> None:
        """An environment of it could not be made here, and the fault was ours."""
        self.coming.pop(image, None)
        self.failed.pop(image, None)
        self.failed[image] = now + AVOIDED_S
        while len(self.failed) > MOST_COMING:
            del self.failed[next(iter(self.failed))]

    def changed(self, here: Iterable[str], gone: Iterable[str]) -> None:
        """The node reports images that it has since, and others that it has no more."""
        self.here.update(here)
        self.here.difference_update(gone)
        for image in gone:
            self.coming.pop(image, None)

    def _expire(self, now: float) -> None:
        while self.coming:
            oldest = next(iter(self.coming))
            if self.coming[oldest].until_s > now:
                return
            del self.coming[oldest]


def share(used: int, capacity: int) -> float:
    """The share of a resource that is taken; infinity where there is none of it."""
    return used / capacity if capacity else math.inf
