"""Start the model server. Exit status 2 and one line on standard error, if the model cannot be served."""

from __future__ import annotations

import asyncio
import importlib.util
import sys

from services.gpu_manager.torch_server.errors import InsufficientMemory, InvalidModel
from services.gpu_manager.torch_server.options import read_options

INVALID = 2
NO_MEMORY = 3
"""Exit statuses, for the process that started this one."""


def main(arguments: list[str] | None = None) -> int:
    """Run the server and return the exit status."""
    options = read_options(sys.argv[1:] if arguments is None else arguments)
    missing = [name for name in ("torch", "tokenizers") if importlib.util.find_spec(name) is None]
    if missing:
        return _failed(f"{' and '.join(missing)} not installed; pip install 'treadle[torch]'", INVALID)
    from services.gpu_manager.torch_server.serving import load, serve

    try:
        model, texts = load(options)
        asyncio.run(serve(options, model, texts))
    except InvalidModel as error:
        return _failed(str(error), INVALID)
    except InsufficientMemory as error:
        return _failed(str(error), NO_MEMORY)
    except OSError as error:
        return _failed(f"{options.host}:{options.port} cannot be listened on: {error}", INVALID)
    return 0


def _failed(reason: str, status: int) -> int:
    sys.stderr.write(f"torch_server: {reason}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
