"""Problems that `/v1/health` and `treadle status` name."""

from __future__ import annotations

from services.proxy.health import STUCK_CAUSES_SHOWN, _stuck
from shared.policy.dispatch.backlog import PoolBacklog, StuckWork

NO_QUOTA = "there is no quota 'serch'; create it with treadle quota set serch --rate 10/s"


def stuck(*lacks: StuckWork) -> str:
    return _stuck(PoolBacklog("cores@default", 9, list(lacks)))


def test_work_that_a_quota_never_lets_start_is_shown_with_the_reason_of_the_quota() -> None:
    one = StuckWork("code.run", {"cores": 1}, 1, {"serch": 1.0}, NO_QUOTA)
    assert stuck(one) == f"actions in cores@default are stuck (1): {NO_QUOTA}"


def test_each_cause_is_named_once() -> None:
    by_quota = [StuckWork(kind, {"cores": 1}, 2, {"serch": 1.0}, NO_QUOTA) for kind in ("code.run", "noop")]
    wide = StuckWork("noop", {"cores": 999}, 1)
    lacks = "no node of class 'default' offers noop with cores=999"
    assert stuck(*by_quota, wide) == f"actions in cores@default are stuck (5): {NO_QUOTA}; {lacks}"


def test_the_causes_are_bounded() -> None:
    lacks = [StuckWork("noop", {"cores": 100 + n}, 1) for n in range(STUCK_CAUSES_SHOWN + 2)]
    text = stuck(*lacks)
    assert text.endswith("with cores=102; and 2 more")
    assert text.count("offers noop") == STUCK_CAUSES_SHOWN
