"""Variables of an environment's commands, with those that lead clients of models to its own model."""

from __future__ import annotations

from typing import Final

from shared.messages.environments import MODEL_PORT, EnvironmentSpec

_BASE: Final = f"http://127.0.0.1:{MODEL_PORT}"
NO_KEY: Final = "in-sandbox"
"""Clients do not start without a key. The forwarder, outside, replaces this one."""
_MODEL: Final = {
    "OPENAI_BASE_URL": f"{_BASE}/v1",
    "OPENAI_API_BASE": f"{_BASE}/v1",
    "OPENAI_API_KEY": NO_KEY,
    "ANTHROPIC_BASE_URL": _BASE,
    "ANTHROPIC_API_KEY": NO_KEY,
}


def variables_of(spec: EnvironmentSpec) -> dict[str, str]:
    """Return the variables of every command. Those of the specification replace ours."""
    return {**_MODEL, **spec.env} if spec.model else spec.env
