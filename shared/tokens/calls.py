"""Record of one model call: what was sampled, and which earlier call its prompt extends."""

from __future__ import annotations

from typing import Literal

import msgspec

CallStatus = Literal["complete", "aborted", "incomplete", "no-ids"]
"""`aborted`: ended by its client or engine before its end. `incomplete`: ids or log-probabilities are missing.
`no-ids`: the engine or the route reports none, so the call has no tokens here."""
LogprobMeaning = Literal["", "raw", "after-temperature", "processed"]
"""What log-probabilities were taken of: the model alone, after its temperature, or after all of the sampler. Empty: not
known."""


class VersionSpan(msgspec.Struct, frozen=True):
    """Tokens that one policy version sampled: positions `start` to `end`, half-open."""

    version: str
    start: int
    end: int


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a trajectory's model. Ids are those of the engine; nothing is tokenised again."""

    serial: int
    """Order of its record in the trajectory."""
    call: str
    """Id of the call. Of several choices (`n`), the second has `#1` behind it."""
    extends: int | None = None
    """Serial of the call whose prompt and output its prompt extends, token by token. None: it begins a chain."""
    kept: int = 0
    """Ids of that chain, which begin its prompt and are not repeated here."""
    prompt: tuple[int, ...] = ()
    """Ids of its prompt after the kept ones."""
    output: tuple[int, ...] = ()
    logprobs: tuple[float, ...] | None = None
    """One for each id of the output. None: not reported, or not for all."""
    logprobs_of: LogprobMeaning = ""
    temperature: float | None = None
    versions: tuple[VersionSpan, ...] = ()
    """Over the ids of the output."""
    finish_reason: str = ""
    status: CallStatus = "complete"
    reason: str = ""
    """Why it is not complete."""
    route: str = ""
    model: str = ""
    worker: str = ""
    created_s: float = 0.0
    """Time of its beginning, Unix seconds."""
    ended_s: float = 0.0
    """Time at which its whole answer had arrived, or the call had ended; 0: records of older versions have none."""

    @property
    def ids(self) -> int:
        """Ids that its record has."""
        return len(self.prompt) + len(self.output)
