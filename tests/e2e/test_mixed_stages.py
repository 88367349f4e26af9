"""One task with stages on a core, on a GPU and under a quota, with an artifact from its first stage to its last."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from aiohttp import web

from tests.e2e.test_model_services import entry
from tests.e2e.upstream import LOOPBACK, Upstream, running_upstream
from tests.shared.bus.soon import soon
from treadle.client.answers import Answer
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.requests import RewardRequest
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

WAIT_S = 150
NODES = {"make": "core-node", "judge": "gpu-node", "search": "call-node", "use": "core-node"}
"""Stage -> node that can execute it, in the order of the stages."""
MAKE = "open('made.txt', 'w').write('{name}')"
USE = "text = open('in/taken.txt').read(); print('made for', text); open('kept.txt', 'w').write(text)"


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    """A stack with one node for each kind of resource."""
    with temporary_home() as root, TemporaryDirectory() as folder:
        declared = Path(folder) / "services.json"
        declared.write_text(json.dumps({"words": entry("words")}))
        environ = {
            "CPU_MANAGER_NODE": NODES["make"],
            "GPU_MANAGER_NODE": NODES["judge"],
            "GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]',
            "GPU_MANAGER_SERVICES": str(declared),
            "QUOTA_MANAGER_NODE": NODES["search"],
            "QUOTA_MANAGER_ALLOW_ADDRESSES": LOOPBACK,
        }
        services = "proxy,scaling_planner,cpu_manager,gpu_manager,quota_manager"
        with running_stack(root, services=services, environ=environ) as running:
            yield running


@pytest.fixture
async def client(stack: RunningStack) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        yield client


def task(upstream: Upstream) -> dict[str, Any]:
    judged = {
        "service": "words",
        "template": [{"role": "user", "content": "{text}"}],
        "score": {"regex": "words counts ([0-9]+)"},
        "pass_at": 3,
    }
    searched = {"url": f"{upstream.url}/find?q={{query}}", "extract": {"pointer": "/found", "pass_at": 5}}
    used = {"code": USE, "artifact_as": "in/taken.txt", "artifact": "kept.txt"}  # without `artifact` it has no verdict
    return {
        "stages": [
            {"name": "make", "kind": "code.run", "params": {"artifact": "made.txt"}},
            {"name": "judge", "kind": "model.judge", "params": judged},
            {"name": "search", "kind": "http", "params": searched, "quotas": {"search": 2}},
            {"name": "use", "kind": "code.run", "params": used},
        ]
    }


def request(name: str, *, text: str = "three words here", makes: bool = True) -> RewardRequest:
    code = MAKE.format(name=name) if makes else "print('nothing')"
    params = {"fields": {"text": text}, "values": {"query": name}}
    return RewardRequest(request_id=name, params=params, stage_params={"make": {"code": code}})


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with running_upstream() as running:
        yield running


async def test_stages_of_a_task_are_on_cores_gpus_and_quotas(client: AsyncTreadle, upstream: Upstream) -> None:
    """Each request passes its stages in order and ends at the first that fails, with the score of that stage."""
    quota_was_read = asyncio.Event()

    async def finds(request: web.Request) -> web.Response:
        await quota_was_read.wait()
        return web.json_response({"found": 2 if request.query["q"] == "rare" else 7})

    async def is_held() -> bool:
        view = await client.quotas.view("search")
        return (view.held, view.actions) == (2.0, 1)

    upstream.answer = finds
    await client.quotas.set("search", concurrency=3)
    await client.put_task("mixed", task(upstream))
    requests = [
        request("first"), request("second"), request("empty", makes=False), request("short", text="word"),
        request("rare"),
    ]  # fmt: skip
    batch = await client.open_batch("mixed", size=len(requests))
    await client.submit(batch.id, requests)
    await soon(is_held, within_s=WAIT_S)
    quota_was_read.set()
    results = [result async for page in client.results(batch.id) for result in page]

    answers = {result.request_id: result for result in results}
    assert len(results) == len(answers) == len(requests), "each is answered once"
    assert {name: (one.ended, one.passed, one.mask, len(one.stages)) for name, one in answers.items()} == {
        "first": ("ok", True, False, 4),
        "second": ("ok", True, False, 4),
        "empty": ("ok", False, False, 1),
        "short": ("ok", False, False, 2),
        "rare": ("ok", False, False, 3),
    }
    assert {name: one.score for name, one in answers.items()} == {
        "first": None, "second": None, "empty": None, "short": 1.0, "rare": 2.0,
    }, "a program that leaves an artifact passes or fails, and has no score"  # fmt: skip
    for name in ("first", "second"):
        assert printed(answers[name]) == f"made for {name}\n", "the artifact has passed a GPU stage and a quota stage"
    for answer in answers.values():
        places = [(stage.name, stage.node, stage.attempts) for stage in answer.stages]
        assert places == [(stage, node, 1) for stage, node in NODES.items()][: len(places)], answer
    assert sorted(path for path, _, _ in upstream.calls) == ["/find?q=first", "/find?q=rare", "/find?q=second"]
    view = await client.quotas.view("search")
    assert (view.held, view.actions) == (0.0, 0), "nothing leaks"


def printed(answer: Answer) -> str:
    """Return the output of the last stage's program."""
    assert answer.output is not None
    return str(answer.output["run_result"]["stdout"])
