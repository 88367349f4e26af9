"""Training rows of a trajectory: each is one chain of calls from its first prompt to its last token.

Laws (tests/shared/tokens/test_rows.py):
  - a row's ids are exactly what the engine received and sampled, in order. Nothing is padded;
  - each sampled token of a complete call has loss mask 1 in exactly one row, and 0 in others that share it;
  - prompts and tool text have 0, as have calls that are not complete, with their reason;
  - a log-probability stands at the position of its token, and 0.0 where the mask is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from shared.tokens.calls import CallRecord, LogprobMeaning, VersionSpan


class MaskedCall(msgspec.Struct, frozen=True):
    """A call of a row whose tokens are not trained there."""

    call: str
    reason: str


class TrainingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row. Lists have one entry for each token."""

    trajectory: str
    calls: list[str]
    """Calls of the chain, in order."""
    token_ids: list[int]
    loss_mask: list[int]
    """1: sampled by the policy and trained in this row."""
    logprobs: list[float]
    logprobs_of: LogprobMeaning
    """Empty if it is not known, or if calls differ."""
    temperature: float | None
    """None if it is not known, or if calls differ."""
    versions: list[VersionSpan]
    """Policy versions of sampled tokens, where the engine has reported them: positions in the row."""
    prompt_len: int
    """Ids of the first prompt."""
    finish_reason: str
    """Of the last call."""
    masked: list[MaskedCall] = []


def rows_of(trajectory: str, calls: Sequence[CallRecord]) -> Iterator[TrainingRow]:
    """Yield the rows of a trajectory, in the order of their last calls. O(ids of the rows).

    Args:
        trajectory: its id.
        calls: all its calls, by serial. Those without ids have no row.
    """
    known = {call.serial: call for call in calls if call.status != "no-ids"}
    extended = {call.extends for call in known.values() if call.extends in known}
    trained: set[int] = set()
    for serial, call in known.items():
        if serial not in extended:
            yield _row(trajectory, _chain(known, call), trained)


def _chain(known: dict[int, CallRecord], last: CallRecord) -> list[CallRecord]:
    """Return the calls from the first one of a chain."""
    chain = [last]
    while (before := chain[-1].extends) is not None and before in known:
        chain.append(known[before])
    return chain[::-1]


def _row(trajectory: str, chain: Sequence[CallRecord], trained: set[int]) -> TrainingRow:
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    versions: list[VersionSpan] = []
    masked: list[MaskedCall] = []
    for call in chain:
        ids += call.prompt
        mask += [0] * len(call.prompt)
        logprobs += [0.0] * len(call.prompt)
        begin, count = len(ids), len(call.output)
        ids += call.output
        why = _why_masked(call, trained)
        if why:
            masked.append(MaskedCall(call.call, why))
        else:
            trained.add(call.serial)
        mask += [0 if why else 1] * count
        logprobs += [0.0] * count if why or call.logprobs is None else call.logprobs
        versions += [VersionSpan(one.version, begin + one.start, begin + one.end) for one in call.versions]
    meanings, temperatures = {call.logprobs_of for call in chain}, {call.temperature for call in chain}
    return TrainingRow(
        trajectory=trajectory,
        calls=[call.call for call in chain],
        token_ids=ids,
        loss_mask=mask,
        logprobs=logprobs,
        logprobs_of=meanings.pop() if len(meanings) == 1 else "",
        temperature=temperatures.pop() if len(temperatures) == 1 else None,
        versions=versions,
        prompt_len=chain[0].kept + len(chain[0].prompt),
        finish_reason=chain[-1].finish_reason,
        masked=masked,
    )


def _why_masked(call: CallRecord, trained: set[int]) -> str:
    """Return why a call's tokens are not trained in this row; empty: they are."""
    if call.status != "complete":
        return f"{call.status}: {call.reason}" if call.reason else call.status
    if call.logprobs is None or len(call.logprobs) != len(call.output):
        return "incomplete: the engine has reported no log-probability for some tokens"
    return "trained in an earlier row" if call.serial in trained else ""
