"""Far more of verl's calls than two cores can serve in its time limit: `python -m tests.conformance.verl_overload`.

A mesh of its own with two cores is started. 100 programs loop for 10 s each; 200 callers have programs of 2 s. A
caller waits as verl does: 10 s more than compile and run timeout, counted between bytes. Takes about 13 minutes; exit
status 1 where a caller was not served.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from tests.conformance.verl import Case, CaseOutcome, score_all
from tests.e2e.replicas import running_mesh
from treadle.testing.servers import running_valkey, temporary_home

CORES = 2


def looping(number: int, seconds: float) -> Case:
    """A distinct program that uses its core for so long."""
    code = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass\nprint({number})"
    return Case(code=code, expected=str(number), compile_s=10, run_s=max(10.0, 3 * seconds))


def overload(url: str, programs: int, seconds: float) -> list[CaseOutcome]:
    """Call with all cases at once, one caller each."""
    return score_all(url, [looping(number, seconds) for number in range(programs)])


def main() -> None:
    failed = False
    for programs, seconds in ((100, 10.0), (200, 2.0)):
        with (
            temporary_home() as home,
            running_valkey(home) as url,
            running_mesh(url, proxies=1, managers=1, cores=CORES) as mesh,
        ):
            started = time.monotonic()
            scored = overload(mesh.proxies[0].url + "/run_code", programs, seconds)
            took_s = time.monotonic() - started
        scores = Counter(str(each.score) for each in scored)
        statuses = Counter(status for each in scored for status in each.statuses)
        failed |= scores != Counter({"True": programs})
        line = (
            f"{programs} programs of {seconds:g} s on {CORES} cores: {took_s:.0f} s, {dict(scores)}, {dict(statuses)}"
        )
        sys.stdout.write(line + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
