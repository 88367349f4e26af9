"""Treadle: rewards and sandboxes for RL, action by action.

    from treadle import RewardRequest, StageTemplate, Task, Treadle

    with Treadle("http://127.0.0.1:8700") as treadle:
        treadle.put_task("coder", Task(stages=[StageTemplate(name="tests", kind="code.asserts")]))
        samples = [RewardRequest(params={"code": "def f(x): return x", "tests": "assert f(1) == 1"})]
        print(treadle.grade("coder", samples).scores)

`AsyncTreadle` is the same with `await`. A name is imported at its first use, so that processes of the mesh start
without the client.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.client.answers import Answer as Answer
    from treadle.client.answers import BatchView as BatchView
    from treadle.client.answers import Result as Result
    from treadle.client.answers import TrajectoryView as TrajectoryView
    from treadle.client.asynchronous import AsyncTreadle as AsyncTreadle
    from treadle.client.blocking import Treadle as Treadle
    from treadle.client.errors import LeaseLost as LeaseLost
    from treadle.client.errors import QuotaNever as QuotaNever
    from treadle.client.errors import QuotaTaken as QuotaTaken
    from treadle.client.errors import TreadleError as TreadleError
    from treadle.client.graded import GradedBatch as GradedBatch
    from treadle.client.graded import ProgressListener as ProgressListener
    from treadle.client.progress import ProgressBar as ProgressBar
    from treadle.client.requests import EnvironmentSpec as EnvironmentSpec
    from treadle.client.requests import QuotaRate as QuotaRate
    from treadle.client.requests import RewardRequest as RewardRequest
    from treadle.client.requests import StageTemplate as StageTemplate
    from treadle.client.requests import Task as Task
    from treadle.client.requests import TrajectoryRequest as TrajectoryRequest
    from treadle.client.retry import RetryPolicy as RetryPolicy

_EXPORTS = {
    "answers": ("Answer", "BatchView", "Result", "TrajectoryView"),
    "asynchronous": ("AsyncTreadle",),
    "blocking": ("Treadle",),
    "errors": ("LeaseLost", "QuotaNever", "QuotaTaken", "TreadleError"),
    "graded": ("GradedBatch", "ProgressListener"),
    "progress": ("ProgressBar",),
    "requests": ("EnvironmentSpec", "QuotaRate", "RewardRequest", "StageTemplate", "Task", "TrajectoryRequest"),
    "retry": ("RetryPolicy",),
}
"""Module of `treadle.client` -> public names in it."""
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "Answer",
    "AsyncTreadle",
    "BatchView",
    "EnvironmentSpec",
    "GradedBatch",
    "LeaseLost",
    "ProgressBar",
    "ProgressListener",
    "QuotaNever",
    "QuotaRate",
    "QuotaTaken",
    "Result",
    "RetryPolicy",
    "RewardRequest",
    "StageTemplate",
    "Task",
    "TrajectoryRequest",
    "TrajectoryView",
    "Treadle",
    "TreadleError",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'treadle' has no attribute {name!r}")
    return getattr(importlib.import_module(f"treadle.client.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
