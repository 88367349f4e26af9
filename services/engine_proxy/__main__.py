"""The engine proxy as a process: `python -m services.engine_proxy`, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import signal
import sys

from services.engine_proxy.app import EngineProxy
from services.engine_proxy.settings import EngineProxySettings
from shared.runtime import log
from shared.runtime.settings import WrongSetting, load


def main() -> None:
    try:
        settings = load(EngineProxySettings)
    except WrongSetting as error:  # a person's mistake, not a crash: no traceback
        sys.exit(str(error))
    log.configure("engine_proxy", level=settings.treadle.log_level, json=settings.treadle.log_json)
    asyncio.run(_run(settings))


async def _run(settings: EngineProxySettings) -> None:
    asked_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked_to_stop.set)
    async with EngineProxy(settings):
        await asked_to_stop.wait()


if __name__ == "__main__":
    main()
