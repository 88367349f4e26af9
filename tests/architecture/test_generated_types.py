"""The client's types are those that scripts/client_types.py generates from docs/openapi.json."""

from __future__ import annotations

import json

from scripts.client_types import DOCUMENT, generated


def test_the_files_are_what_the_generator_writes() -> None:
    for path, text in generated(json.loads(DOCUMENT.read_text())):
        assert path.read_text() == text, (
            f"{path.name} is older than docs/openapi.json: run .venv/bin/python -m scripts.client_types"
        )
