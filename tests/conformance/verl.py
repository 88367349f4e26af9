"""Use of `/run_code` by verl: one call for each test case, with its waits, retries and limits.

Written from the facts of its reward code (verl/utils/reward_score/sandbox_fusion), so that the mesh can be judged by
the score a trainer would end up with.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import requests

TRIES: Final = 3
PAUSE_S: Final = 1.0
"""Before the second try; twice as long before the third."""
PATIENCE_S: Final = 10.0
"""Read timeout beyond compile + run timeout."""
MEMORY_MB: Final = 1024

API_ERROR, RUN_ERROR, RUN_TIMEOUT, COMPILE_ERROR = -1, -2, -3, -4
"""Scores besides True and False; the trainer counts each of them as not passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A program and one test case of it."""

    code: str
    stdin: str = ""
    expected: str | None = None
    """None: exit code 0 suffices."""
    language: str = "python"
    compile_s: float = 2.0
    run_s: float = 4.0

    def body(self) -> dict[str, Any]:
        """The request, field by field."""
        return {
            "compile_timeout": self.compile_s,
            "run_timeout": self.run_s,
            "code": self.code,
            "stdin": self.stdin,
            "memory_limit_MB": MEMORY_MB,
            "language": self.language,
            "files": {},
            "fetch_files": [],
        }


@dataclass(slots=True)
class CaseOutcome:
    """Outcome of a case."""

    score: bool | int = API_ERROR
    statuses: list[int] = field(default_factory=list)
    """Status of each try."""
    reply: dict[str, Any] = field(default_factory=dict)
    """The last body."""


def score_all(url: str, cases: Sequence[Case]) -> list[CaseOutcome]:
    """Every case in a thread of its own, as under verl's semaphore of 64."""
    with ThreadPoolExecutor(max_workers=len(cases)) as pool:
        return list(pool.map(lambda case: score(url, case), cases))


def score(url: str, case: Case) -> CaseOutcome:
    """One case to its end; a new connection for each try, as verl has it. Three tries and 3 s of pauses at most."""
    scored = CaseOutcome()
    for attempt in range(1, TRIES + 1):
        try:
            response = requests.post(url, json=case.body(), timeout=case.compile_s + case.run_s + PATIENCE_S)
        except requests.RequestException as error:
            scored.reply = {"detail": str(error)}
            return scored
        scored.statuses.append(response.status_code)
        scored.reply = response.json()
        if response.status_code != 504:
            break
        if attempt < TRIES:
            time.sleep(PAUSE_S * attempt)
    if scored.statuses[-1] == 200:
        scored.score = score_of(case, scored.reply)
    return scored


def score_of(case: Case, reply: dict[str, Any]) -> bool | int:
    """Score by verl's rule: an end that is neither a success nor the program's fault is a sandbox error."""
    compiled, run = reply["compile_result"], reply["run_result"]
    if reply["status"] == "Success" and run and run["status"] == "Finished":
        return case.expected is None or run["stdout"].rstrip("\n") == case.expected.rstrip("\n")
    if reply["status"] != "Failed":
        return API_ERROR
    if compiled and (compiled["status"] == "TimeLimitExceeded" or compiled["return_code"] != 0):
        return COMPILE_ERROR
    if run and run["status"] == "TimeLimitExceeded":
        return RUN_TIMEOUT
    return RUN_ERROR if run and run["return_code"] != 0 else API_ERROR
