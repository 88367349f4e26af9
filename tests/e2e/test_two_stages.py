"""A workflow of two stages over two pools: a queue each, an exit where a stage fails, limits and their scores."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from tests.e2e.proxy_calls import SPIN, call, http, mesh, open_batch, results
from tests.shared.bus.soon import soon

__all__ = ["http", "mesh"]

TASK = {
    "stages": [
        {"name": "check", "kind": "code.asserts", "params": {"timeout_s": 60}, "timeout_s": 3, "timeout_score": -2.0},
        {"name": "judge", "kind": "sleep", "units": {"slots": 1}, "timeout_s": 2, "timeout_score": -3.0},
    ],
    "timeout_score": -1.0,
}
"""Cores, then slots. The check's own limit is far beyond the stage's, so that it is the stage's which ends it."""


def line(name: str, *, code: str = "x = 1", right: bool = True, seconds: float = 0.0) -> dict[str, Any]:
    params = {"code": code, "tests": f"assert x == {1 if right else 2}", "seconds": seconds}
    return {"request_id": name, "params": params}


async def send(http: aiohttp.ClientSession, batch: str, *lines: dict[str, Any]) -> None:
    data = "\n".join(map(json.dumps, lines))
    status, receipt = await call(http, "POST", f"/v1/rewards/bulk?batch={batch}", data=data)
    assert (status, receipt["accepted"]) == (200, len(lines)), receipt


async def test_each_stage_may_end_a_request_and_scores_its_own_time_limit(http: aiohttp.ClientSession) -> None:
    plain = [{name: value for name, value in stage.items() if name != "timeout_score"} for stage in TASK["stages"]]  # type: ignore[attr-defined]
    assert (await call(http, "PUT", "/v1/tasks/scored", json=TASK))[0] == 200
    assert (await call(http, "PUT", "/v1/tasks/unscored", json={**TASK, "stages": plain}))[0] == 200
    scored, unscored = await open_batch(http, "scored", size=4), await open_batch(http, "unscored", size=2)
    await send(
        http,
        scored,
        line("passes"),
        line("fails", right=False, seconds=60),
        line("spins", code=SPIN),
        line("sleeps", seconds=60),
    )
    await send(http, unscored, line("spins", code=SPIN), line("sleeps", seconds=60))
    got = {answer["request_id"]: answer for answer in await results(http, scored)}
    assert {name: (answer["ended"], answer.get("score"), len(answer["stages"])) for name, answer in got.items()} == {
        "passes": ("ok", None, 2),  # a sleep has no opinion
        "fails": ("ok", 0.0, 1),
        "spins": ("timeout", -2.0, 1),
        "sleeps": ("timeout", -3.0, 2),
    }
    assert not any(answer.get("mask") for answer in got.values())
    assert got["spins"]["usage"]["cpu_s"] > 1.0, "of the program that its stage's limit of 3 s ended"
    assert 0.0 < got["passes"]["usage"]["cpu_s"] < got["spins"]["usage"]["cpu_s"]
    assert {answer["request_id"]: answer["score"] for answer in await results(http, unscored)} == {
        "spins": -1.0,
        "sleeps": -1.0,
    }


async def test_each_stage_has_a_queue_of_its_own_pool(http: aiohttp.ClientSession) -> None:
    """The one core is in use: requests past the check continue, and the others wait for the core alone."""
    stages = [
        {"name": "gate", "kind": "sleep", "units": {"cores": 1}, "timeout_s": 60},
        {"name": "judge", "kind": "sleep", "units": {"slots": 1}, "timeout_s": 60},
    ]
    assert (await call(http, "PUT", "/v1/tasks/queued", json={"stages": stages}))[0] == 200
    batch = await open_batch(http, "queued", size=3)
    quick = {"gate": {"seconds": 0}, "judge": {"seconds": 50}}
    slow = {"gate": {"seconds": 50}, "judge": {"seconds": 0}}
    await send(
        http, batch, *({"request_id": n, "stage_params": p} for n, p in (("a", quick), ("b", slow), ("c", slow)))
    )

    async def one_waits_for_the_core() -> bool:
        pools = {pool["name"]: pool for pool in (await call(http, "GET", "/v1/pools"))[1]["pools"]}
        return bool(pools["cores@default"]["waiting"] == 1 and pools["slots@default"]["waiting"] == 0)

    await soon(one_waits_for_the_core)
    await call(http, "DELETE", f"/v1/batches/{batch}")
    passed = {
        answer["request_id"]: [s["name"] for s in answer.get("stages", [])] for answer in await results(http, batch)
    }
    assert passed == {"a": ["gate"], "b": [], "c": []}
