"""Expected tokens of a trajectory at its end, by the ended trajectories of its group.

The expectation is the first of these that is known:
  - the mean of the ended trajectories of the same (tenant, group), but not more than the declared most tokens;
  - the declared most tokens;
  - the tokens that the trajectory holds now.
It is never less than what the trajectory holds now (tests/shared/policy/routing/test_group_lengths.py). Trajectories
without a group have no mean. The method is the first estimate of the issue; Heddle's predictions replace it later.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

MOST_GROUPS: Final = 4096
"""Groups that are kept: about 1 MB. The one whose last trajectory ended first is removed."""


@dataclass(slots=True)
class GroupLengths:
    """Means of ended trajectories by (tenant, group). Each method is O(1)."""

    most_groups: int = MOST_GROUPS
    _sums: OrderedDict[tuple[str, str], tuple[int, int]] = field(default_factory=OrderedDict)
    """(Tenant, group) -> (ended trajectories, sum of their tokens). The newest is last."""

    def __len__(self) -> int:
        return len(self._sums)

    def record(self, tenant: str, group: str, tokens: int) -> None:
        """Record the tokens of an ended trajectory. Without a group or without tokens, nothing is learned."""
        if not group or tokens <= 0:
            return
        count, total = self._sums.pop((tenant, group), (0, 0))
        self._sums[tenant, group] = count + 1, total + tokens
        if len(self._sums) > self.most_groups:
            self._sums.popitem(last=False)

    def expected(self, tenant: str, group: str, most_tokens: int | None, held_tokens: int) -> int:
        """Tokens that a trajectory is expected to hold at its end.

        Args:
            tenant: owner of the group.
            group: empty: the trajectory has none.
            most_tokens: declared most tokens; None: not declared.
            held_tokens: tokens that it holds now.
        """
        known = self._sums.get((tenant, group)) if group else None
        if known is None:
            return max(held_tokens, most_tokens or 0)
        count, total = known
        mean = -(-total // count)
        return max(held_tokens, mean if most_tokens is None else min(mean, most_tokens))
