"""A vLLM front for tests that can be held in a step: `load`, `evict`, `restore` or `canary`.

`python -m tests.e2e.held_vllm --port 8000 --model first --control FOLDER`. While FOLDER has `hold-STEP-MODEL`, an
engine of this model does not go on in this step, and creates `reached-STEP-MODEL`. A chat completion is
`<model> counts <words of the message>`, and is recorded in `calls` of FOLDER.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from tests.services.gpu_manager.backends.vllm_server import LOADED, Switches, VllmServer

LOAD_S = 3.0
"""Time of a load: longer than a restore is expected to take, so that engines are put to sleep and not stopped."""


@dataclass
class HeldVllm(VllmServer):
    """A server of one model."""

    model: str = ""
    control: Path = Path()

    async def held(self, step: str) -> None:
        """Wait until the test lets this step go on."""
        hold = self.control / f"hold-{step}-{self.model}"
        if not hold.exists():
            return
        (self.control / f"reached-{step}-{self.model}").touch()
        while hold.exists():  # noqa: ASYNC110  # the other side is another process
            await asyncio.sleep(0.01)

    async def sleep(self, request: web.Request) -> web.Response:
        await self.held("evict")
        return await super().sleep(request)

    async def wake_up(self, request: web.Request) -> web.Response:
        await self.held("restore")
        return await super().wake_up(request)

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "prompt" in body:
            await self.held("canary")
            return await super().complete(request)
        answer = await super().complete(request)  # when it is awake
        if self.weights != LOADED:
            return answer
        content = body["messages"][-1]["content"]
        with (self.control / "calls").open("a") as calls:
            calls.write(json.dumps({"model": self.model, "content": content}) + "\n")
        message = {"role": "assistant", "content": f"{self.model} counts {len(content.split())}"}
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--control", type=Path, required=True)
    options = parser.parse_args()

    async def loaded() -> web.Application:
        server = HeldVllm(Switches(), crash=lambda: os._exit(139), model=options.model, control=options.control)
        await server.held("load")
        await asyncio.sleep(LOAD_S)
        return server.app()

    web.run_app(loaded(), host="127.0.0.1", port=options.port, access_log=None, shutdown_timeout=0.1, print=None)


if __name__ == "__main__":
    main()
