"""Step 4 of the schema. Each change of stored data has one function here, which is safe to repeat."""

from __future__ import annotations

from typing import Any, Final

from redis.asyncio import Redis

from shared.bus.renames import rewrite_stream
from shared.bus.spelling import spell_out
from shared.messages.outcomes import OUTCOMES

_RESULT: Final[tuple[str, ...]] = (
    "status",
    "passed",
    "score",
    "output",
    "reason",
    "peak_memory_bytes",
    "evidence",
    "retry_in_s",
    "environment_exists",
    "environment_ended",
)
"""Fields of `finished.v1` that `finished.v2` has in its `result`."""


async def apply_step_4(redis: Redis) -> None:
    """Change data of schema 3 to schema 4.

    Raises:
        Unavailable: a service publishes during every attempt to rewrite a stream.
    """
    await rewrite_stream(redis, OUTCOMES.name, _nest_result)
    await spell_out(redis)


def _nest_result(message: dict[str, Any]) -> dict[str, Any]:
    """Return an outcome with its result as one value (ADR 0052)."""
    if message["kind"] != "finished.v1":
        return message
    result = {name: message[name] for name in _RESULT if name in message}
    if message.get("cpu_s"):
        result["usage"] = {"cpu_s": message["cpu_s"]}
    rest = {name: value for name, value in message.items() if name not in _RESULT and name != "cpu_s"}
    return rest | {"kind": "finished.v2", "result": result}
