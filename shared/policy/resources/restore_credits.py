"""Credits of model services towards restores at other degrees: the ski-rental rule (Karlin et al., Algorithmica 1988).

A restore serves later calls too, but a plan counts its cost for those that wait now. Without credits, a service with
slow restores may keep its first engine although another degree would cost less in the long run. Rule: what calls have
lost because they did not have another degree is a credit of that degree. A plan takes it off the cost of a restore
there. Laws (test_restore_credits.py):
  - a credit is the largest sum of losses of the latest calls, for any number of them, since the last restore at its
    degree; at least 0. So a degree that was better only sometimes has a small one;
  - a restore spends the credit of its degree. So the credits that restores spend are at most what calls have lost
    before. Calls that are planned together each count the present one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from shared.policy.model.chunks import SIZES

MOST_SERVICES: Final = 4096
"""Most services with credits; beyond it all are forgotten."""
NO_CREDITS: Final = (0.0,) * len(SIZES)
_AT: Final = {size: at for at, size in enumerate(SIZES)}


@dataclass(slots=True)
class RestoreCredits:
    """Credits of the services of one pool."""

    _credits: dict[str, list[float]] = field(default_factory=dict)
    """Service -> by `SIZES`, seconds of cost."""

    def of(self, service: str) -> tuple[float, ...]:
        """Return the credits of a service by `SIZES`, in seconds of cost."""
        known = self._credits.get(service)
        return NO_CREDITS if known is None else tuple(known)

    def granted(self, service: str, costs: Mapping[int, float], size: int, *, restores: bool) -> None:
        """Note a call that was granted. O(degrees).

        Args:
            service: its model service.
            costs: size of a chunk -> seconds of cost of the call there, without a restore and without waiting.
            size: of its chunk.
            restores: its service is restored there.
        """
        known = self._credits.get(service)
        if known is None:
            if len(self._credits) >= MOST_SERVICES:
                self._credits.clear()
            known = self._credits[service] = [0.0] * len(SIZES)
        paid = costs[size]
        for other, cost in costs.items():
            at = _AT[other]
            known[at] = max(0.0, known[at] + paid - cost)
        if restores:
            known[_AT[size]] = 0.0
