"""A small bad tree: each rule names the line that breaks it, and no other."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.architecture import executors, rules
from tests.architecture.layers import layers_are_kept
from tests.architecture.rules import MOST_LINES, RULES, Rule
from tests.architecture.source import modules

BROKEN: list[tuple[Rule, str, str, list[int]]] = [
    (
        rules.the_bus_owns_valkey,
        "services/proxy/records/store.py",
        """\
        from shared.bus import batches, keys
        from shared.bus.connection import command, with_retries
        from shared.bus.functions import call
        async def read(self, redis, batch):
            await self._redis.hget("batch", "state")
            await redis.xlen("actions")
            pipe = self.client.pipeline(transaction=False)
            await self.client.execute_command("GET", "mesh")
            name = f"batch:{batch}"
            other = "results:" + batch
            third = b"action:" + batch
            fourth = f"quotas:{batch}:levels"
            fine = f"batches {batch}" + "batch: a word" + batch + f"tenants: {batch}"
            await redis.aclose()
            return await batches.read_batch(self._redis, batch)
        """,
        [2, 3, 5, 6, 7, 8, 9, 10, 11, 12],
    ),
    (
        rules.http_goes_through_the_runtime,
        "services/quota_manager/executor.py",
        """\
        import aiohttp
        from aiohttp.abc import AbstractResolver
        import urllib.parse, urllib.request
        from shared.runtime.http import open_http
        def later():
            import httpx
        import aiohttplike, http.cookies
        """,
        [1, 2, 3, 6],
    ),
    (rules.http_goes_through_the_runtime, "treadle/client/transport.py", "import aiohttp\n", []),
    (rules.http_goes_through_the_runtime, "shared/runtime/http.py", "import aiohttp\n", []),
    (
        rules.services_never_import_each_other,
        "services/proxy/leader.py",
        """\
        import services.cpu_manager.node_manager
        from services.cpu_manager import node_manager
        from services import cpu_manager
        from ..cpu_manager import node
        import services.proxy.records.waiters
        from services.proxy import waiters
        from .waiters import Waiters
        from . import waiters
        import shared.runtime.log
        def later():
            from services.scaling_planner.app import create_app
            importlib.import_module("services.console.app")
        """,
        [1, 2, 3, 4, 11, 12],
    ),
    (
        layers_are_kept,
        "shared/bus/tail.py",
        """\
        from shared.bus import connection
        import serviceslike, msgspec
        from shared.runtime import log
        def later():
            from services.proxy import leader
        import tests.conftest
        from shared.store import results
        from treadle.client import errors
        """,
        [5, 6, 7, 8],
    ),
    (
        layers_are_kept,
        "shared/policy/order/tenants.py",
        "import shared.policy.model\nfrom shared.policy.dispatch import life\nfrom shared.runtime import log\n",
        [2, 3],
    ),
    (
        layers_are_kept,
        "services/proxy/records/store.py",
        "from services.proxy.metrics import X\nfrom services.proxy.http.hot import Y\nimport services.proxy.leader\n",
        [2, 3],
    ),
    (layers_are_kept, "services/quota/app.py", "from shared.bus import wire\nfrom treadle.client import errors\n", [2]),
    (layers_are_kept, "treadle/client/transport.py", "import shared.api\nfrom treadle.client import errors\n", [1]),
    (layers_are_kept, "treadle/cli/main.py", "import shared.api\nfrom services.proxy import app\n", [2]),
    (layers_are_kept, "shared/novel/thing.py", "", [1]),
    (
        rules.decisions_are_pure,
        "shared/policy/order/ebf.py",
        """\
        import heapq, math
        import asyncio
        from time import monotonic
        from datetime import datetime
        import logging
        import os.path
        import socket
        import random
        from random import Random
        from random import shuffle
        import numpy as np
        import numba
        from shared.policy.resources.ledger import Node
        from shared.policy import floor
        from .ledger import Node
        from shared import log
        import shared.policy_of_others
        def chance(rng: random.Random, other: np.random.Generator):
            return rng.random() + random.random() + np.random.default_rng().random()
        async def wait(queue):
            await queue.get()
            return [one async for one in queue]
        def look():
            print(open("x").read())
        """,
        [2, 3, 4, 5, 6, 7, 10, 16, 17, 19, 19, 20, 21, 22, 24, 24],
    ),
    (
        rules.decisions_are_pure,
        "treadle/lab/replay/traces.py",
        "from pathlib import Path\nimport shared.policy.dispatch.dispatcher\nimport treadle.lab.replay.mesh\n",
        [1],
    ),
    (rules.decisions_are_documented, "shared/policy/resources/pools.py", "# a comment is no docstring\nX = 1\n", [1]),
    (rules.files_are_short, "services/proxy/long.py", "x = 1\n" * (MOST_LINES + 1), [MOST_LINES + 1]),
    (rules.files_have_names, "services/proxy/utils.py", "", [1]),
    (rules.files_have_names, "shared/common.py", "", [1]),
    (
        executors.resources_are_named_by_their_executors,
        "services/proxy/leader/requests.py",
        """\
        units = {"cores": 1}
        pool = f"slots@{node_class}"
        default = "cores@any"
        text = "it needs cores"
        name = spec.resources[0]
        memory = found.get("memory_mb", 0)
        """,
        [1, 2, 3, 6],
    ),
    (executors.resources_are_named_by_their_executors, "services/cpu_manager/cores.py", 'units = {"cores": 1}\n', []),
    (
        executors.declarations_import_only_shared,
        "services/gpu_manager/kinds.py",
        """\
        from __future__ import annotations
        import msgspec
        from shared.kinds.spec import KindSpec
        from services.gpu_manager.settings import GpuManagerSettings
        import torch
        from shared.bus import functions
        """,
        [4, 5, 6],
    ),
    (executors.declarations_import_only_shared, "services/gpu_manager/deep/kinds.py", "import torch\n", []),
    (
        rules.importing_does_nothing,
        "services/proxy/app.py",
        """\
        import os
        from functools import cache
        log = structlog.get_logger(__name__)
        router = APIRouter(prefix="/v1")
        app = create_app()
        if DEBUG:
            redis = redis.asyncio.from_url("redis://")
        try:
            TEXT = Path("x").read_text()
        except OSError:
            os.mkdir("x")
        register(app)
        HOME = os.environ["HOME"]
        with lock:
            pass
        class Settings:
            home = os.getenv("HOME")
            def connect(self):
                return connect(os.environ["URL"])
        def routes(app=FastAPI(), *, make=lambda: create_app()):
            with open("x") as file:
                print(file)
            return create_app()
        @cache
        def made():
            run()
        if __name__ == "__main__":
            run(create_app())
        """,
        [5, 7, 9, 11, 12, 13, 14, 17, 20],
    ),
]


@pytest.mark.parametrize(
    ("rule", "path", "text", "lines"), BROKEN, ids=[f"{one[0].__name__}-{one[1]}" for one in BROKEN]
)
def test_a_rule_names_the_lines_that_break_it(
    tmp_path: Path, rule: Rule, path: str, text: str, lines: list[int]
) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(dedent(text))
    (module,) = modules(tmp_path, "services", "shared", "treadle")
    found = sorted(rule(module), key=lambda finding: finding.line)
    assert [finding.line for finding in found] == lines
    assert all(str(finding).startswith(f"{path}:{finding.line}: ") for finding in found)


def test_every_rule_has_a_case_that_breaks_it() -> None:
    assert {rule for rule, *_ in BROKEN} == set(RULES)


def test_a_good_tree_is_kept(tmp_path: Path) -> None:
    good = {
        "services/proxy/app.py": "from services.proxy.http import router\nfrom shared.runtime import log\n",
        "shared/policy/order/lanes.py": '"""A law."""\nimport heapq\nfrom shared.policy.order.ebf import Key\n',
        "shared/runtime/app.py": "X = frozenset({1})\n",
        "services/__init__.py": '"""Services."""\n',
    }
    for path, text in good.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert len(modules(tmp_path, "services", "shared")) == len(good)
    assert not [
        finding for module in modules(tmp_path, "services", "shared") for rule in RULES for finding in rule(module)
    ]
