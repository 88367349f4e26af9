"""More calls in verl's manner than the mesh can serve: no right program is scored wrong, none runs twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle, islice
from typing import Any

import pytest
import requests
from sandbox_fusion import RunCodeRequest, RunStatus, run_code

from tests.conformance.verl import API_ERROR, COMPILE_ERROR, RUN_ERROR, TRIES, Case, score, score_all
from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import Mesh, executions, is_ready, leads, metric, until
from treadle.testing.servers import running_valkey, temporary_home

PLAIN = {"PROXY_HOLD": "never"}
"""Settings for clients that are not held; tests/conformance/test_held_calls.py tests held ones."""
MARGIN_S = 0.5
JOIN_S = 10.0
QUICK = "print(int(input()) * 2)"
SLOW_COMPILE = """#include <bits/stdc++.h>
int main() { std::string line; std::getline(std::cin, line);
std::cout << std::regex_replace(line, std::regex("[aeiou]"), "_") << std::endl; }"""
LATE = "it would start after its deadline"


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    """One core, and short limits for calls."""
    settings = {**PLAIN, "PROXY_RUN_CODE_MARGIN_S": str(MARGIN_S), "PROXY_RUN_CODE_JOIN_S": str(JOIN_S)}
    with (
        temporary_home() as home,
        running_valkey(home) as url,
        running_service("proxy", url, **settings) as proxy,
        running_service("cpu_manager", url, CPU_MANAGER_CORES="1") as manager,
    ):
        asyncio.run(until(lambda: leads(proxy) and is_ready(proxy) and is_ready(manager)))
        yield Mesh([proxy], [manager])


def run_code_url(mesh: Mesh, task: str) -> str:
    """URL of `/run_code` of a task; a task for each test, because expected durations are learned by task."""
    return f"{mesh.proxies[0].url}/t/verl/{task}/run_code"


def at_rest(mesh: Mesh) -> tuple[int, int]:
    """(actions accepted, attempts executed) so far, when no action is running."""
    proxy = mesh.proxies[0]
    asyncio.run(until(lambda: metric(proxy, "treadle_proxy_unanswered_actions") == 0))
    return round(metric(proxy, "treadle_proxy_submitted_total")), executions(mesh)


def sleeping(seconds: float) -> str:
    """A program that uses its core for so long, independent of the load of this machine."""
    return f"import time\ntime.sleep({seconds})\n"


def teach(url: str, count: int = 6) -> None:
    """Execute quick programs, so that the mesh learns short durations for this task."""
    for number in range(count):
        assert score(url, Case(code=QUICK, stdin=str(number), expected=str(number * 2))).score is True


@pytest.mark.slow
def test_overload_scores_no_right_program_wrong(mesh: Mesh) -> None:
    ends = list(islice(cycle([("print(int(input()) * 2)", True), ("print(-1)", False), ("1 / 0", RUN_ERROR)]), 48))
    cases = [
        Case(code=sleeping(0.25) + code, stdin=str(number), expected=str(number * 2), compile_s=0.5, run_s=3)
        for number, (code, _) in enumerate(ends)
    ]
    _, executed_before = at_rest(mesh)
    outcomes = score_all(run_code_url(mesh, "overload"), cases)
    for outcome, (_, end) in zip(outcomes, ends, strict=True):
        given_up = outcome.statuses == [504] * TRIES
        assert given_up or outcome.statuses[-1] == 200, outcome
        assert outcome.score == (API_ERROR if given_up else end), outcome
    answered = sum(outcome.statuses[-1] == 200 for outcome in outcomes)
    assert any(504 in outcome.statuses for outcome in outcomes), "48 programs of 0.25 s fitted into 4 s of one core"
    assert answered >= len(cases) // 6
    _, executed = at_rest(mesh)
    assert answered <= executed - executed_before <= len(cases), "a retry executes nothing again"


def test_a_call_that_got_504_joins_its_action(mesh: Mesh) -> None:
    url = run_code_url(mesh, "joins")
    teach(url)
    accepted_before, executed_before = at_rest(mesh)
    same = Case(code=QUICK, stdin="4", expected="8", compile_s=0.1, run_s=1)
    victims = [same, same, same, Case(code=QUICK, stdin="5", expected="10", compile_s=0.1, run_s=1)]
    blocker = Case(code=sleeping(4), run_s=20)
    with ThreadPoolExecutor(2) as pool:
        blocking = pool.submit(score, url, blocker)
        await_attempt(mesh)
        request = RunCodeRequest(code=QUICK, language="python", stdin="6", compile_timeout=0.1, run_timeout=1)
        published = pool.submit(run_code, request, endpoint=url.removesuffix("/run_code"), client_timeout=30)
        outcomes = score_all(url, victims)
        assert blocking.result().score is True
        assert published.result().status is RunStatus.Success
    assert [outcome.score for outcome in outcomes] == [True] * len(victims)
    assert all(outcome.statuses[0] == 504 for outcome in outcomes)
    accepted, executed = at_rest(mesh)
    asked = len(victims) + len([blocker, request])
    assert (accepted - accepted_before, executed - executed_before) == (asked, asked)


def await_attempt(mesh: Mesh) -> None:
    """Wait until the one core is in use."""
    url = f"{mesh.proxies[0].url}/v1/nodes"
    asyncio.run(until(lambda: bool(requests.get(url, timeout=10).json()["nodes"][0]["used"].get("cores"))))


def test_a_call_that_would_start_too_late_is_rejected_at_once(mesh: Mesh) -> None:
    url = run_code_url(mesh, "late")
    for _ in range(3):
        assert score(url, Case(code=sleeping(0.5))).score is True
    actions = [start(mesh, sleeping(600)) for _ in range(3)]
    try:
        await_attempt(mesh)
        late = Case(code=QUICK, stdin="1", compile_s=10, run_s=20)
        asked_at = time.monotonic()
        reply = requests.post(url, json=late.body(), timeout=60)
        assert time.monotonic() - asked_at < late.compile_s + late.run_s
    finally:
        for action in actions:
            requests.delete(f"{mesh.proxies[0].url}/v1/actions/{action}", timeout=30)
    assert (reply.status_code, LATE in reply.json()["detail"]) == (504, True), reply.text
    at_rest(mesh)


def start(mesh: Mesh, code: str) -> str:
    """An action on a core, without a waiting caller."""
    body: dict[str, Any] = {"kind": "code.run", "params": {"code": code, "run_timeout_s": 900}, "timeout_s": 900}
    reply = requests.post(f"{mesh.proxies[0].url}/v1/actions", json=body, timeout=30)
    assert reply.status_code in (200, 201, 202), reply.text
    return str(reply.json()["id"])


def test_the_cases_of_a_program_share_one_compile(mesh: Mesh) -> None:
    words = [f"treadle {number}" for number in range(16)]
    cases = [
        Case(
            code=SLOW_COMPILE,
            stdin=word,
            expected=word.replace("e", "_").replace("a", "_"),
            language=language,
            compile_s=30,
            run_s=10,
        )
        for word, language in zip(words, cycle(["cpp", "c++", "C++"]), strict=False)
    ]
    url = run_code_url(mesh, "compiled")
    teach(url)  # otherwise sixteen unseen programs are expected to take 4 s each, and the last is rejected at once
    outcomes = score_all(url, cases)
    assert [outcome.score for outcome in outcomes] == [True] * len(cases), outcomes
    spent = [outcome.reply["cpu_time"] for outcome in outcomes]
    assert sum(spent) < 3 * max(spent), "one of sixteen paid for the compile"
    assert len({outcome.reply["compile_result"]["execution_time"] for outcome in outcomes}) == 1
    stranger = score(f"{mesh.proxies[0].url}/t/stranger/compiled/run_code", cases[0])
    assert stranger.score is True
    assert stranger.reply["compile_result"]["execution_time"] != outcomes[0].reply["compile_result"]["execution_time"]


def test_the_cases_of_a_broken_program_share_one_compile_error(mesh: Mesh) -> None:
    source = "#include <bits/stdc++.h>\nint main() { return undeclared; }"
    cases = [Case(code=source, stdin=str(number), language="cpp", compile_s=30) for number in range(8)]
    outcomes = score_all(run_code_url(mesh, "broken"), cases)
    assert [outcome.score for outcome in outcomes] == [COMPILE_ERROR] * len(cases)
    assert len({outcome.reply["compile_result"]["execution_time"] for outcome in outcomes}) == 1


def test_a_full_journal_and_a_missing_valkey_are_504() -> None:
    """verl would treat 503 as final and score the program as failed."""
    settings = {**PLAIN, "PROXY_MAX_JOURNAL": "1", "PROXY_SUBMIT_RETRY_S": "0.5", "PROXY_RUN_CODE_MARGIN_S": "0.2"}
    with temporary_home() as home, ExitStack() as valkey:
        url = valkey.enter_context(running_valkey(home))
        with running_service("proxy", url, **settings) as proxy:
            asyncio.run(until(lambda: leads(proxy)))
            left = call(proxy, Case(code="pass", compile_s=0.2, run_s=0.2))  # there is no node: it stays in the journal
            assert (left.status_code, "no answer within" in left.json()["detail"]) == (504, True), left.text
            full = call(proxy, Case(code="1"))
            assert (full.status_code, "too many unanswered" in full.json()["detail"]) == (504, True), full.text
            valkey.close()
            away = call(proxy, Case(code="2"))
            assert (away.status_code, "has not answered" in away.json()["detail"]) == (504, True), away.text


def call(proxy: Service, case: Case) -> requests.Response:
    return requests.post(f"{proxy.url}/run_code", json=case.body(), timeout=30)
