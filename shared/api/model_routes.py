"""The routes of models: what is passed to an engine, and nothing else.

The trajectory router serves them, and the forwarder of a CPU manager passes them to it.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

ErrorStyle = Literal["openai", "anthropic"]


class ModelRoute(NamedTuple):
    """One route of engines."""

    path: str
    recorded: bool
    """Its tokens are recorded for trajectories that ask for it."""
    error_style: ErrorStyle = "openai"


MODEL_ROUTES: Final = {
    route.path: route
    for route in (
        ModelRoute("/v1/chat/completions", recorded=True),
        ModelRoute("/v1/completions", recorded=True),
        ModelRoute("/v1/responses", recorded=True),
        ModelRoute("/v1/messages", recorded=True, error_style="anthropic"),
        ModelRoute("/v1/messages/count_tokens", recorded=False, error_style="anthropic"),
        ModelRoute("/v1/embeddings", recorded=False),
        ModelRoute("/generate", recorded=True),
        ModelRoute("/inference/v1/generate", recorded=True),
    )
}
"""Path -> route. All are POST."""
MODELS: Final = "/v1/models"
"""GET: the models of all workers."""
OWN: Final = "/r/"
"""Begins the path of a trajectory's own address: `/r/{trajectory}/v1/...`."""
KEY_HEADERS: Final = frozenset({b"authorization", b"x-api-key"})
"""Headers with a trajectory's key. Engines do not get them."""
