"""Turns and ends of trajectories."""

from __future__ import annotations

from shared.policy.dispatch.trajectories import MOST_ENDED, TrajectoryTurns
from shared.policy.model.formulation import EnvironmentNeed


def test_the_first_action_has_the_turn_until_it_is_answered() -> None:
    trajectories = TrajectoryTurns()
    for name in ("a", "b", "c"):
        trajectories.add("t", name)
    assert trajectories.remove("t", "b") is None, "the turn has not changed"
    assert trajectories.remove("t", "a") == "c"
    assert trajectories.remove("t", "c") is None
    assert trajectories.turns == {}
    trajectories.check()


def test_an_end_is_known_by_the_need_and_the_newest_ones_are_kept() -> None:
    trajectories, need = TrajectoryTurns(), EnvironmentNeed("t", "runtime.local", {})
    assert trajectories.end_of(need) is None
    assert trajectories.end_of(None) is None
    trajectories.end("t", "closed")
    assert trajectories.end_of(need) == "closed"
    for number in range(MOST_ENDED):
        trajectories.end(f"other{number}", "closed")
    assert trajectories.end_of(need) is None
    assert len(trajectories.ended) == MOST_ENDED


def test_an_end_that_is_recorded_again_is_the_newest_with_its_new_reason() -> None:
    trajectories, need = TrajectoryTurns(), EnvironmentNeed("t", "runtime.local", {})
    trajectories.end("t", "closed")
    trajectories.end("oldest", "closed")
    for number in range(MOST_ENDED - 2):
        trajectories.end(f"other{number}", "closed")
    trajectories.end("t", "lost")
    assert len(trajectories.ended) == MOST_ENDED
    trajectories.end("newest", "closed")
    assert "oldest" not in trajectories.ended
    assert trajectories.end_of(need) == "lost"
