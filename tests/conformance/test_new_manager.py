"""A new manager is one package with one class: its actions are dispatched, executed and answered by a real mesh."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from shared.bus import functions
from shared.bus.functions import Submission
from shared.messages.actions import ACTIONS, ActionSubmitted, StageWork
from shared.node.agent import NodeAgent
from shared.node.connection import open_node
from tests.conformance.permit_manager.executor import KIND, PERMITS, PermitExecutor
from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import leads, until
from treadle.testing.servers import running_valkey

COUNT, PERMITS_HERE = 40, 3


def submission(name: str, seconds: float) -> Submission:
    """An accepted action of the manager's own kind. The proxy's API does not know it yet, so it goes to the journal."""
    stage = StageWork(
        name="hold", kind=KIND, pool=f"{PERMITS}@default", cost={PERMITS: (1, 1)}, timeout_s=60.0,
        params=msgspec.json.encode({"seconds": seconds}),
    )  # fmt: skip
    message = ActionSubmitted(action=name, tenant="ada", stages=(stage,), budget_s=600.0)
    return Submission(name, b"", "", ACTIONS.encode(message), tenant="ada")


def view(proxy: Service, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(proxy.url + path, timeout=30) as response:
        return dict(json.load(response))


async def test_a_kind_of_its_own_is_executed_with_a_resource_of_its_own(stack_home: Path) -> None:
    names = [f"action{number:04}" for number in range(COUNT)]
    with running_valkey(stack_home, durable=False) as url, running_service("proxy", url) as proxy:
        await until(lambda: leads(proxy))
        async with open_node(url, name="permit_manager", node="desk") as connection:
            executor = PermitExecutor(PERMITS_HERE)
            agent = NodeAgent(connection, executor)
            async with agent.running(heartbeat_s=0.2):
                await functions.journal_actions(
                    connection.redis, [submission(name, 0.01) for name in names], max_journal=1000
                )
                answers = [await asyncio.to_thread(view, proxy, f"/v1/actions/{name}?wait=60") for name in names]
                nodes = await asyncio.to_thread(view, proxy, "/v1/nodes")
    assert {(one["ended"], one["stages"][0]["node"], one["stages"][0]["attempts"]) for one in answers} == {
        ("ok", "desk", 1)
    }
    assert {one["usage"]["permit_s"] for one in answers} == {0.01}
    assert [(one["name"], one["capacity"], one["kinds"]) for one in nodes["nodes"]] == [
        ("desk", {PERMITS: PERMITS_HERE}, [KIND])
    ]
