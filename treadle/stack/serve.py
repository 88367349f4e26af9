"""The process of one service: ``python -m treadle.stack.serve NAME MODULE:FACTORY [--fd N]``.

uvicorn on uvloop and httptools, without an access log (metrics count requests). It uses the socket inherited from the
supervisor, or the address of the service's settings.
"""

import argparse
import asyncio
import importlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.bus.connection import connect, with_retries
from shared.bus.schema import WrongSchema, check_schema
from shared.runtime import log
from shared.runtime.errors import Unavailable
from shared.runtime.settings import TreadleSettings, WrongSetting, load
from treadle.stack.bounded_http import BoundedHttp
from treadle.stack.collector import settle_collector
from treadle.stack.hosts import HostCheck

STORE_RETRY_LIMIT_S = 30.0
"""Time limit for a Valkey that starts, or loads its file, together with the service."""
DRAIN_S = 10
"""Seconds for a stopping service to finish its requests. Less than the supervisor's grace (STACK_GRACE)."""


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        settle_collector()


def middleware_of(app: ASGIApp) -> ASGIApp:
    """Return the app. Requests of a FastAPI app begin at its first middleware: the calls before it do no more."""
    if not isinstance(app, FastAPI):
        return app

    def call(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http" or app.middleware_stack is None:
            return app(scope, receive, send)
        scope["app"] = app
        return app.middleware_stack(scope, receive, send)

    return call


def serve(factory: Callable[[], ASGIApp], *, descriptor: int | None, host: str, port: int, prefix: str) -> None:
    """Run the app until a signal, on the inherited socket ``descriptor``, else on ``host`` and ``port``.

    ``prefix``: of the service's settings, such as ``PROXY``.
    """
    setting = f"{prefix}_ALLOWED_HOSTS"
    allowed = os.environ.get(setting, "").split(",")
    config = uvicorn.Config(
        lambda: HostCheck(middleware_of(factory()), allowed, setting=setting),
        factory=True,
        interface="asgi3",
        host=host,
        port=port,
        loop="uvloop",
        http=BoundedHttp,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=DRAIN_S,
    )
    sockets = [socket.socket(fileno=descriptor)] if descriptor is not None else None
    _Server(config).run(sockets)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m treadle.stack.serve", description=__doc__)
    parser.add_argument("name", help="the service, as in its settings' prefix: proxy, cpu_manager ...")
    parser.add_argument("factory", help="module:callable that makes the app")
    parser.add_argument("--fd", type=int, default=None, help="an inherited listening socket")
    chosen = parser.parse_args()
    try:
        _serve(chosen.name, chosen.factory, chosen.fd)
    except (WrongSetting, WrongSchema, Unavailable) as error:  # a message for a person: no traceback
        sys.exit(str(error))


async def _check_store(redis_url: str) -> None:
    """Check the store's schema before the service reads or writes anything.

    Raises:
        WrongSchema: the data in Valkey is not of this release.
        Unavailable: Valkey does not answer.
    """
    async with connect(redis_url, name="schema") as redis:
        await with_retries(lambda: check_schema(redis), what="reading the schema", limit_s=STORE_RETRY_LIMIT_S)


def _serve(name: str, factory: str, descriptor: int | None) -> None:
    settings = load(TreadleSettings)
    log.configure(name, level=settings.log_level, json=settings.log_json)
    asyncio.run(_check_store(settings.redis_url))
    module, _, attribute = factory.partition(":")
    prefix = name.upper()
    if descriptor is not None:
        _set_address(prefix, descriptor)
    serve(
        getattr(importlib.import_module(module), attribute),
        descriptor=descriptor,
        host=os.environ.get(f"{prefix}_HOST", "127.0.0.1"),
        port=int(os.environ.get(f"{prefix}_PORT", "0")),
        prefix=prefix,
    )


def _set_address(prefix: str, descriptor: int) -> None:
    """Set the service's settings to the address of its inherited socket: some register it for others."""
    inherited = socket.socket(fileno=os.dup(descriptor))
    with inherited:
        host, port = inherited.getsockname()[:2]
    os.environ[f"{prefix}_HOST"], os.environ[f"{prefix}_PORT"] = host, str(port)


if __name__ == "__main__":
    main()
