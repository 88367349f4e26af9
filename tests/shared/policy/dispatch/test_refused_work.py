"""A walk over a lane that passes over works of which one could not start, beside one that looks at every action."""

from __future__ import annotations

from copy import deepcopy
from random import Random

import pytest

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.refused_work import RefusedWork
from shared.policy.model.formulation import Grant
from tests.shared.policy.dispatch.random_history import QUOTAS, History


def looks_at_all(self: RefusedWork, action: ActionState) -> bool:
    return False


def test_passing_over_work_like_that_which_could_not_start_decides_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step again on a copy of the state before it. Most actions are of four works, as those of tasks."""
    passed_over = granted = 0
    contains = RefusedWork.__contains__

    def counted(self: RefusedWork, action: ActionState) -> bool:
        nonlocal passed_over
        found = contains(self, action)
        passed_over += found
        return found

    for seed in range(4):
        made = History(Random(seed), acting=0.1, taking=0.9, repeated=0.8)
        for quota, limits in QUOTAS.items():
            made.give(QuotaSet(quota, limits[0]))
        for at in range(10):
            made.join(at)
        for _ in range(250):
            again, first = deepcopy(made.dispatcher), len(made.steps)
            with monkeypatch.context() as patch:
                patch.setattr(RefusedWork, "__contains__", counted)
                made.step()
            with monkeypatch.context() as patch:
                patch.setattr(RefusedWork, "__contains__", looks_at_all)
                for now, stimulus, commands in made.steps[first:]:
                    assert again.handle(now, stimulus) == commands, stimulus
                    granted += sum(isinstance(one, Grant) for one in commands)
    assert passed_over > 300
    assert granted > 200
