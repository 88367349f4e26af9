"""Calls of the published `skyrl-gym` client, unmodified, in a process with the requirements of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".clients" / "skyrl" / "bin" / "python"
"""Installed by scripts/client-tools."""
PROGRAM = """
import json, logging, sys
logging.disable(logging.CRITICAL)
import skyrl_gym.tools.search as search
url, queries, options = json.loads(sys.argv[1])
search.INITIAL_RETRY_DELAY = options.pop("delay_s", 1)
tool = search.SearchToolGroup(search_url=url, **options)
print(json.dumps([json.loads(tool.execute_tool("search", query))["result"] for query in queries]))
"""


def searched(url: str, *queries: str, **options: Any) -> list[str]:
    """Return what the client's search tool returns for each query. `delay_s`: unit of its delays between attempts."""
    if not PYTHON.exists():
        if os.environ.get("TREADLE_REQUIRE_CLIENTS"):
            pytest.fail("scripts/client-tools has not installed skyrl-gym")
        pytest.skip("skyrl-gym is not installed: run scripts/client-tools")
    argv = [str(PYTHON), "-c", PROGRAM, json.dumps([url, queries, options])]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=120, check=True, env={"PATH": os.environ["PATH"]}
    )
    return list(json.loads(done.stdout))
