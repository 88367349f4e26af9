"""Bodies of the token records of trajectories. Rows: `shared/tokens/rows.py`."""

from __future__ import annotations

from typing import Annotated, Any, Self

import msgspec

from shared.tokens.calls import CallRecord, CallStatus, LogprobMeaning, VersionSpan
from shared.tokens.rows import MaskedCall, TrainingRow


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One model call of a recorded trajectory, without its ids."""

    serial: int
    """Order of its record in the trajectory."""
    call: str
    """Id of the call."""
    extends: Annotated[int, msgspec.Meta(ge=0)] | None
    """Serial of the call whose prompt and output its prompt extends, token by token. Null: it begins a chain."""
    prompt_tokens: int
    """Ids of its whole prompt; 0: not reported."""
    output_tokens: int
    """Ids of its output; 0: not reported."""
    status: CallStatus
    """`complete`, or why its tokens are not trained: `aborted` (ended early), `incomplete` (ids or log-probabilities
    are missing), `no-ids` (it is in no row)."""
    reason: str
    """Why it is not complete."""
    logprobs_of: LogprobMeaning
    """What its log-probabilities were taken of: the model alone (`raw`), `after-temperature`, or after the whole
    sampler (`processed`). Empty: there are none."""
    temperature: float | None
    """As requested; null: the engine's default."""
    versions: list[VersionSpan]
    """Policy versions, where the engine reports them: positions in its output."""
    finish_reason: str
    """As the engine reports it."""
    route: str
    """Path of the call."""
    model: str
    """As requested."""
    worker: str
    """Worker that has answered it."""
    created_at: float
    """Time of its beginning, Unix seconds."""
    ended_at: float | None = None
    """Time at which its whole answer had arrived, or the call had ended; null: a record of an older version."""

    @classmethod
    def of(cls, call: CallRecord) -> Self:
        """Return a call without its ids."""
        return cls(
            serial=call.serial,
            call=call.call,
            extends=call.extends,
            prompt_tokens=call.kept + len(call.prompt),
            output_tokens=len(call.output),
            status=call.status,
            reason=call.reason,
            logprobs_of=call.logprobs_of,
            temperature=call.temperature,
            versions=list(call.versions),
            finish_reason=call.finish_reason,
            route=call.route,
            model=call.model,
            worker=call.worker,
            created_at=call.created_s,
            ended_at=call.ended_s or None,
        )


TOKEN_TYPES: tuple[type[Any], ...] = (TrainingRow, MaskedCall, VersionSpan, RecordedCall)
"""Types of the OpenAPI document."""
