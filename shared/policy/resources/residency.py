"""Residency of images on nodes: present and expected images, and the node that pulls one in advance.

Laws, held by tests/shared/policy/resources/test_residency.py:
  - an environment goes to a node that has its image, else to one that is getting it, else to any; memory decides among
    equals (`place_environment`);
  - an expected image is pulled by one node: the one where its environments are predicted to be placed;
  - the state of a node is bounded, and an expectation expires.

A node that lacks an image can still create its environments: it pulls first. So none of this can lose work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

EXPECTED_S = 300.0
"""Lifetime of an expectation, seconds. By then the expected environments have begun, or their time is unknown."""
MOST_EXPECTED = 4096
"""Most images expected on one node; the oldest are removed."""
MOST_PRESENT = 2048
"""Most known images of one node; it reports no more."""

AVOIDED_S = 60.0
"""Seconds for which a node that failed to create an environment of a missing image ranks last for it."""

PRESENT, EXPECTED, ABSENT, AVOIDED = 0, 1, 2, 3


class ExpectedImage(NamedTuple):
    """An image that a node was asked to pull, or pulls for an environment."""

    until_s: float
    units: Mapping[str, int]
    """Units that environments of it that have not begun will hold there."""


@dataclass(slots=True)
class Residency:
    """Images of one node."""

    present: set[str] = field(default_factory=set)
    expected: dict[str, ExpectedImage] = field(default_factory=dict)
    """By age, oldest first."""
    failed: dict[str, float] = field(default_factory=dict)
    """Image -> end of the time in which the node is avoided for it; by age, oldest first."""

    def rank(self, image: str, now: float) -> int:
        """`PRESENT`, `EXPECTED`, `ABSENT` or `AVOIDED`; `PRESENT` on every node for an environment without an image."""
        if not image or image in self.present:
            return PRESENT
        if self.failed.get(image, now) > now:
            return AVOIDED
        expectation = self.expected.get(image)
        return EXPECTED if expectation is not None and expectation.until_s > now else ABSENT

    def expected_units(self, resource: str, now: float) -> int:
        """Units that expected environments will hold. O(expected images)."""
        self._expire(now)
        return sum(one.units.get(resource, 0) for one in self.expected.values())

    def expect(self, image: str, units: Mapping[str, int], now: float) -> None:
        """Expect environments of this image here; `units`: units that one more of them will hold."""
        self._expire(now)
        known = self.expected.pop(image, None)
        held = dict(known.units) if known is not None else {}
        for name, count in units.items():
            held[name] = held.get(name, 0) + count
        self.expected[image] = ExpectedImage(now + EXPECTED_S, held)
        while len(self.expected) > MOST_EXPECTED:
            del self.expected[next(iter(self.expected))]

    def environment_begun(self, image: str, units: Mapping[str, int], now: float) -> None:
        """An environment has begun here. If the image is missing, the node pulls it now, and other environments may
        follow.
        """
        known = self.expected.get(image)
        if known is not None:
            left = {name: max(0, count - units.get(name, 0)) for name, count in known.units.items()}
            self.expected[image] = known._replace(units=left)
        elif image and image not in self.present:
            self.expect(image, {}, now)

    def creation_failed(self, image: str, now: float) -> None:
        """An environment of it could not be created here, because of an infrastructure failure."""
        self.expected.pop(image, None)
        self.failed.pop(image, None)
        self.failed[image] = now + AVOIDED_S
        while len(self.failed) > MOST_EXPECTED:
            del self.failed[next(iter(self.failed))]

    def changed(self, present: Iterable[str], gone: Iterable[str]) -> None:
        """Apply a node's report of images added and removed."""
        self.present.update(present)
        self.present.difference_update(gone)
        for image in gone:
            self.expected.pop(image, None)

    def _expire(self, now: float) -> None:
        while self.expected:
            oldest = next(iter(self.expected))
            if self.expected[oldest].until_s > now:
                return
            del self.expected[oldest]
