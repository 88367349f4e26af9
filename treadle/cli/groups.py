"""Groups of commands that call one proxy: `treadle tenants set`, `treadle quota set`."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self, TypeVar

import typer

from treadle.cli.proxy import check_proxy, proxy_url
from treadle.client.asynchronous import AsyncTreadle

T = TypeVar("T")

Url = Annotated[str | None, typer.Option(help="The proxy. [default: TREADLE_URL, or the stack that is up]")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """Options that each command of a group has. Those before the command's name hold for it too."""

    url: str | None
    home: Path | None
    as_json: bool

    @classmethod
    def of(cls, context: typer.Context, url: str | None, home: Path | None, as_json: bool) -> Self:
        """Return the options of a command, where it has none those of the group."""
        given: Self = context.obj
        source = context.get_parameter_source("home")
        own_home = source is not None and source.name == "COMMANDLINE"  # TREADLE_HOME does not replace the group's
        return cls(url or given.url, home if own_home else given.home, as_json or given.as_json)

    def call(self, call: Callable[[AsyncTreadle], Awaitable[T]]) -> T:
        """Call the proxy."""

        async def called() -> T:
            async with AsyncTreadle(proxy_url(self.url, self.home)) as client:
                await check_proxy(client)
                return await call(client)

        return asyncio.run(called())
