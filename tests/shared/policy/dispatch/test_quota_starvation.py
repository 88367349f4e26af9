"""An old action that needs much of a quota, or of two, starts although newer small ones come without end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.stimuli import AttemptsEnded, NodeSeen, RequestsSubmitted, Stimulus, TickPassed
from shared.policy.model.formulation import Grant
from shared.policy.model.quotas import QuotaLimits, Rate
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from tests.shared.policy.dispatch.leading import leading
from tests.shared.policy.strategies import request, work

STEP_S = 0.1
SMALL_EACH_STEP = 4
"""40 a second: four times what the rate gives, and more than the slots serve."""
CALL_S = 0.5
LIMITS = {
    "slots": QuotaLimits((10.0,)),
    "rate": QuotaLimits((), (Rate(10.0, 1.0, 10.0),)),
    "other": QuotaLimits((), (Rate(10.0, 1.0, 10.0),)),
}


@pytest.mark.parametrize(
    ("wanted", "within_s"),
    [
        ({"slots": 9.0}, 1.0),
        ({"rate": 9.0}, 1.5),
        ({"rate": 9.0, "other": 9.0}, 1.5),
        ({"slots": 9.0, "rate": 9.0}, 2.0),
    ],
)
@pytest.mark.parametrize("same_tenant", [True, False])
def test_an_old_action_with_large_amounts_is_not_starved(
    wanted: dict[str, float], within_s: float, same_tenant: bool
) -> None:
    """Its bound: until the slots that are held are free, and one refill of what it needs."""
    dispatcher = leading("n", cores=64)
    for name, limits in LIMITS.items():
        dispatcher.handle(0.0, QuotaSet(name, limits))
    running: list[tuple[float, Grant]] = []
    submitted_s = STEP_S  # older work of the first step goes first, and newer work does not
    for step in range(100):
        now = step * STEP_S
        stimuli: list[Stimulus] = [NodeSeen("n", "1"), TickPassed()]
        ended = [grant for ends_s, grant in running if ends_s <= now]
        running = [one for one in running if one[0] > now]
        ends = tuple(
            Ended(one.action, "n", one.attempt, 0, AttemptResult("ok", True), execution_s=CALL_S) for one in ended
        )
        small = [
            request(
                f"{name}-{step}-{number}",
                replace(work(), quotas={name: 1.0}),
                at_s=now,
                batch=f"{name}-{step}",
                tenant="small",
            )
            for name in wanted
            for number in range(SMALL_EACH_STEP)
        ]
        if now == submitted_s:
            tenant = "small" if same_tenant else "large"
            small.insert(0, request("large", replace(work(), quotas=wanted), at_s=now, batch="large", tenant=tenant))
        commands = dispatcher.handle(now, *stimuli, AttemptsEnded(ends), RequestsSubmitted(tuple(small)))
        granted = [one for one in commands if isinstance(one, Grant)]
        running += [(now + CALL_S, one) for one in granted]
        if any(one.action == "large" for one in granted):
            assert now - submitted_s <= within_s
            dispatcher.check()
            return
    raise AssertionError("it was starved")
