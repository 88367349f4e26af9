"""A client that behaves as verl's code reward does (facts-trainer-clients §2.1), written from that description.

One POST a test case on a connection of its own; it waits compile + run + 10 s; 504 is tried again twice, after one and
two seconds; every other failure is final and counts as a case that did not pass.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import requests

TRIES = 3
API_ERROR, RUNTIME_ERROR, RUN_TIMEOUT, COMPILE_ERROR = -1, -2, -3, -4


@dataclass(frozen=True, slots=True)
class Case:
    """One test case of a program."""

    code: str
    stdin: str
    expected: str
    language: str = "python"


@dataclass(slots=True)
class Scored:
    """What became of a case."""

    result: bool | int = API_ERROR
    """True, False, or one of the codes above."""
    statuses: list[int] = field(default_factory=list)
    """HTTP status of each try."""
    details: list[str] = field(default_factory=list)
    """What 504s said."""


def score(url: str, case: Case, *, compile_s: float, run_s: float) -> Scored:
    """One case as verl scores it."""
    body = json.dumps(
        {
            "compile_timeout": compile_s,
            "run_timeout": run_s,
            "code": case.code,
            "stdin": case.stdin,
            "memory_limit_MB": 1024,
            "language": case.language,
            "files": {},
            "fetch_files": [],
        }
    )
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    scored = Scored()
    for attempt in range(TRIES):
        try:
            reply = requests.post(url, headers=headers, data=body, timeout=compile_s + run_s + 10)
        except requests.RequestException as error:
            scored.details.append(str(error))
            return scored
        scored.statuses.append(reply.status_code)
        if reply.status_code == 504:
            scored.details.append(reply.json()["detail"])
            if attempt + 1 < TRIES:
                time.sleep(attempt + 1)
            continue
        if reply.status_code == 200:
            scored.result = judged(reply.json(), case.expected)
        return scored
    return scored


def judged(reply: dict[str, Any], expected: str) -> bool | int:
    """The result of one answered case."""
    compiled, run = reply["compile_result"], reply["run_result"]
    if reply["status"] == "Success" and run["status"] == "Finished":
        return str(run["stdout"]).rstrip("\n") == expected.rstrip("\n")
    if reply["status"] == "SandboxError":
        return API_ERROR
    if compiled is not None and (compiled["status"] != "Finished" or compiled["return_code"] != 0):
        return COMPILE_ERROR
    return RUN_TIMEOUT if run["status"] == "TimeLimitExceeded" else RUNTIME_ERROR


def score_all(url: str, cases: Sequence[Case], *, compile_s: float, run_s: float, callers: int = 64) -> list[Scored]:
    """All cases, so many at once, in their order."""
    with ThreadPoolExecutor(callers) as pool:
        return list(pool.map(lambda case: score(url, case, compile_s=compile_s, run_s=run_s), cases))
