"""Expected durations of stages: declared by the trainer, else learned from what has ended.

Work of a model service of which its tenant and task have no history counts as long as all work of that service. Else
the first burst of a tenant would be charged a tenth of its timeouts, and wait for as long beside others afterwards.
Other kinds have no such mean: programs of two tasks differ more than calls of one service.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from shared.policy.dispatch.action_state import ActionState
from shared.policy.elastic.scheduling import Scalable
from shared.policy.model.elasticity import Elasticity
from shared.policy.order.estimates import Durations, Key

_MOST_SHAPES: Final = 4096
"""Most shapes (durations of one single-unit second on each amount) that are remembered, and most scaled ones."""
_CHANGE: Final = 0.05
"""Relative change of a kind's duration below which computed durations are kept."""


@dataclass(slots=True)
class StageDurations:
    """Durations of actions' present stages, in seconds; never more than the stage's timeout."""

    learned: Durations = field(default_factory=Durations)
    _shapes: dict[tuple[Elasticity | None, tuple[int, ...]], Scalable] = field(default_factory=dict)
    _declared: dict[tuple[Elasticity | None, tuple[int, ...], float, float], Scalable] = field(default_factory=dict)
    """Scaled shapes of declared durations and timeouts: actions of one task have the same."""

    def expect(self, action: ActionState, units: int | None = None) -> float:
        """Expected seconds on this many units of its pool's resource; None: on the fewest.

        The declared duration, else the learned one of its tenant, task and kind, else that of its model service.
        """
        work = action.work
        if work.elasticity is None or not action.scales:
            if work.duration_s is not None:
                return min(work.timeout_s, work.duration_s)
            return self.learned.expect(self._key(action), work.timeout_s)
        single_s = self.learned.single(self._key(action)) if work.duration_s is None else work.duration_s
        if single_s is None:
            return self.learned.expect(action.duration_key, work.timeout_s)
        return min(work.timeout_s, work.elasticity.duration(single_s, action.pool_units if units is None else units))

    def expect_at_most(self, action: ActionState) -> float:
        """Seconds that are rarely exceeded on the fewest units: the expected duration plus the spread of what it was
        learned from. For a parked action, the expected time until it is parked again or ends.
        """
        if action.parked:
            return action.between_parks_s
        expected_s, work = self.expect(action), action.work
        spread_s = self.learned.spread(self._key(action)) if work.duration_s is None else None
        if spread_s is None:
            return expected_s
        if action.scales and work.elasticity is not None:  # the learned spread is that on one unit
            spread_s = work.elasticity.duration(spread_s, action.pool_units)
        return min(work.timeout_s, expected_s + spread_s)

    def single(self, action: ActionState) -> float | None:
        """Seconds on one unit, declared or learned of its tenant, task and kind; None if unknown."""
        if action.work.duration_s is not None:
            return action.work.duration_s
        return self.learned.single(action.duration_key)

    def scalable(self, action: ActionState) -> Scalable | None:
        """Durations on each amount it may have; None if it is not elastic or its duration is unknown.

        Stored with the action, and computed again after a relevant change of its kind's duration.
        """
        if not action.scales:
            return None
        if action.work.duration_s is not None:  # it does not change
            if action.scalable is None:
                action.scalable = self._scaled_declared(action, action.work.duration_s)
            return action.scalable
        single_s = self.single(action)
        return None if single_s is None else self._scaled(action, single_s)

    def learn(self, action: ActionState, seconds: float) -> None:
        """Record the measured duration on the granted units."""
        elasticity = action.work.elasticity
        if action.scales and elasticity is not None:
            seconds = elasticity.single(seconds, action.granted_units)
        self.learned.learn(action.duration_key, seconds)
        if action.work.service:
            self.learned.learn(_of_service(action), seconds)

    def _key(self, action: ActionState) -> Key:
        """Return the key of the history that counts: of its tenant and task, else of its model service."""
        key = action.duration_key
        return _of_service(action) if action.work.service and self.learned.single(key) is None else key

    def _scaled_declared(self, action: ActionState, single_s: float) -> Scalable:
        work = action.work
        key = (work.elasticity, work.amounts, single_s, work.timeout_s)
        known = self._declared.get(key)
        if known is None:
            if len(self._declared) >= _MOST_SHAPES:
                self._declared.clear()
            known = self._declared[key] = self._shape(action).times(single_s, work.timeout_s)
        return known

    def _scaled(self, action: ActionState, single_s: float) -> Scalable:
        known, shape, timeout_s = action.scalable, self._shape(action), action.work.timeout_s
        first_s = single_s * float(shape.durations_s[0])
        if (
            known is None
            or known.amounts != shape.amounts
            or abs(float(known.durations_s[0]) - min(first_s, timeout_s)) > _CHANGE * first_s
        ):
            known = action.scalable = shape.times(single_s, timeout_s)
        return known

    def _shape(self, action: ActionState) -> Scalable:
        amounts, elasticity = action.work.amounts, action.work.elasticity
        shape = self._shapes.get((elasticity, amounts))
        if shape is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            assert elasticity is not None, f"{action.request.id} does not scale"
            seconds = np.array([elasticity.duration(1.0, amount) for amount in amounts])
            shape = self._shapes[elasticity, amounts] = Scalable(amounts, seconds)
        return shape


def _of_service(action: ActionState) -> Key:
    """Return the key of all work of this kind and model service: no tenant has an empty name."""
    return "", "", action.duration_key[-1]
