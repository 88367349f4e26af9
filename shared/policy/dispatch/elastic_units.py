"""Rules for elastic grants, and durations of an action on each of its amounts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from shared.policy.dispatch.action_state import ActionState
from shared.policy.elastic.scheduling import Rule, Scalable
from shared.policy.model.elasticity import Elasticity

_KEPT: Final = 4096
"""Shapes (durations of one single-unit second on each amount) that are remembered."""
_NEWS: Final = 0.05
"""Relative change of a kind's duration below which computed durations are kept."""


@dataclass(slots=True)
class ElasticGrants:
    """Rules for units beyond the fewest."""

    rule: Rule | None = "priced"
    """None: no elastic grants."""
    patient: bool = True
    """An elastic action waits if more units will be free so soon that it ends earlier (`scheduling.enough`)."""
    depth: int = 2
    """Amounts that the first waiting action tries in estimates (§4.2)."""
    _shapes: dict[tuple[Elasticity | None, tuple[int, ...]], Scalable] = field(default_factory=dict)

    def scalable(self, action: ActionState, single_s: float) -> Scalable:
        """Durations of its stage on each amount, if it takes `single_s` on one unit. Stored with the action for
        reuse.
        """
        kept = action.scalable
        shape = self._shape(action)
        first_s = single_s * float(shape.durations_s[0])
        if kept is None or abs(float(kept.durations_s[0]) - min(first_s, action.work.timeout_s)) > _NEWS * first_s:
            kept = action.scalable = shape.times(single_s, action.work.timeout_s)
        return kept

    def _shape(self, action: ActionState) -> Scalable:
        amounts, elasticity = action.work.amounts, action.work.elasticity
        shape = self._shapes.get((elasticity, amounts))
        if shape is None:
            if len(self._shapes) >= _KEPT:
                self._shapes.clear()
            assert elasticity is not None, f"{action.request.id} does not scale"
            lasts_s = np.array([elasticity.duration(1.0, amount) for amount in amounts])
            shape = self._shapes[elasticity, amounts] = Scalable(amounts, lasts_s)
        return shape
