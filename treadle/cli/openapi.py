"""``treadle openapi``."""

import importlib
import json
from pathlib import Path
from typing import Annotated

import typer

from shared.runtime.settings import WrongSetting
from treadle.stack.services import PROXY, SERVICES


def register(app: typer.Typer) -> None:
    app.command("openapi")(openapi)


def openapi(
    out: Annotated[Path | None, typer.Option(help="Write it there instead of printing it.")] = None,
) -> None:
    """Print the proxy's OpenAPI 3.1 document: what clients are generated from. Needs no running stack."""
    try:
        document = json.dumps(proxy_document(), indent=2, sort_keys=True)
    except WrongSetting as error:
        typer.echo(f"treadle openapi: {error}", err=True)
        raise typer.Exit(1) from error
    if out is None:
        typer.echo(document)
        return
    try:
        out.write_text(document + "\n")
    except OSError as error:
        typer.echo(f"treadle openapi: cannot write {out}: {error.strerror}", err=True)
        raise typer.Exit(1) from error


def proxy_document() -> object:
    """The document; the proxy's app is made for it, but not started. About a second, for its imports."""
    module, _, attribute = next(spec.factory for spec in SERVICES if spec.name == PROXY).partition(":")
    return getattr(importlib.import_module(module), attribute)().openapi()
