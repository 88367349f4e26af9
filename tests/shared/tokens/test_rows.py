"""Rows compared with a plain reading of what an engine received and sampled."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from shared.tokens.calls import CallRecord, CallStatus, VersionSpan
from shared.tokens.chain_heads import ChainHeads, packed
from shared.tokens.rows import TrainingRow, rows_of


@dataclass
class Sampled:
    """One call as the engine saw it: nothing is shared with others."""

    prompt: list[int]
    output: list[int]
    logprobs: list[float]
    status: CallStatus

    @property
    def sequence(self) -> list[int]:
        return self.prompt + self.output


turns = st.lists(
    st.tuples(
        st.integers(-1, 6),  # the call that it goes on from; others begin a chain
        st.integers(0, 3),  # tokens of tool text
        st.integers(0, 4),  # sampled tokens
        st.sampled_from(["complete", "complete", "complete", "aborted", "incomplete", "no-ids"]),
        st.booleans(),  # the prompt's last token before the tool text is another one: it extends nothing
    ),
    min_size=1,
    max_size=9,
)


def played(plan: list[tuple[int, int, int, CallStatus, bool]]) -> tuple[list[Sampled], list[CallRecord]]:
    """Play a plan: each token has a value of its own, so that a row's ids say where they are from."""
    seen: list[Sampled] = []
    records: list[CallRecord] = []
    heads, fresh = ChainHeads(), iter(range(10_000))
    for serial, (parent, tool, count, status, drifts) in enumerate(plan):
        before = seen[parent].sequence if 0 <= parent < len(seen) else []
        if drifts and before:
            before = [*before[:-1], next(fresh)]
        prompt = [*before, *(next(fresh) for _ in range(tool + 1))]
        output = [next(fresh) for _ in range(count)]
        one = Sampled(prompt, output, [-float(token) for token in output], status)
        seen.append(one)
        found = heads.match(packed(prompt))
        if status == "no-ids":
            records.append(CallRecord(serial=serial, call=f"c{serial}", status=status, reason="messages"))
            continue
        heads.add(packed(one.sequence), serial)
        records.append(
            CallRecord(
                serial=serial,
                call=f"c{serial}",
                extends=found.serial,
                kept=found.kept,
                prompt=tuple(prompt[found.kept :]),
                output=tuple(output),
                logprobs=tuple(one.logprobs) if status != "incomplete" else None,
                versions=(VersionSpan("v1", 0, count),) if count else (),
                status=status,
                reason="why" if status != "complete" else "",
            )
        )
    return seen, records


@given(turns)
def test_rows_are_what_the_engine_saw(plan: list[tuple[int, int, int, CallStatus, bool]]) -> None:
    seen, records = played(plan)
    rows = list(rows_of("t", records))
    trained = Counter[int]()
    for row in rows:
        last = seen[int(row.calls[-1][1:])]
        assert row.token_ids == last.sequence, "exactly the last call's prompt and output"
        assert len(row.loss_mask) == len(row.logprobs) == len(row.token_ids)
        assert set(row.loss_mask) <= {0, 1}
        for token, mask, logprob in zip(row.token_ids, row.loss_mask, row.logprobs, strict=True):
            trained[token] += mask
            assert logprob == (-float(token) if mask else 0.0), "the log-probability of this token"
        first = seen[int(row.calls[0][1:])]
        assert row.prompt_len == len(first.prompt)
    sampled = Counter(token for one in seen if one.status == "complete" for token in one.output)
    assert {token: count for token, count in trained.items() if count} == sampled, "each once, and nothing else"


@given(turns)
def test_every_call_with_ids_is_in_a_row_and_masked_ones_say_why(
    plan: list[tuple[int, int, int, CallStatus, bool]],
) -> None:
    seen, records = played(plan)
    rows = list(rows_of("t", records))
    assert {call for row in rows for call in row.calls} == {one.call for one in records if one.status != "no-ids"}
    for row in rows:
        reasons = {one.call: one.reason for one in row.masked}
        for name in row.calls:
            if seen[int(name[1:])].status in ("aborted", "incomplete"):
                assert reasons[name]
        for span in row.versions:
            assert span.version == "v1"
            assert row.token_ids[span.start : span.end] in [one.output for one in seen]


def test_two_branches_share_a_turn_that_is_trained_once() -> None:
    """A turn, and two different next prompts after it."""
    turn = CallRecord(serial=0, call="a", prompt=(1, 2), output=(3,), logprobs=(-0.3,))
    left = CallRecord(serial=1, call="b", extends=0, kept=3, prompt=(4,), output=(5,), logprobs=(-0.5,))
    right = CallRecord(serial=2, call="c", extends=0, kept=3, prompt=(6,), output=(7,), logprobs=(-0.7,))
    first, second = rows_of("t", [turn, left, right])
    assert (first.token_ids, first.loss_mask) == ([1, 2, 3, 4, 5], [0, 0, 1, 0, 1])
    assert (second.token_ids, second.loss_mask) == ([1, 2, 3, 6, 7], [0, 0, 0, 0, 1])
    assert [(one.call, one.reason) for one in second.masked] == [("a", "trained in an earlier row")]


def test_different_temperatures_are_not_reported_as_one() -> None:
    first = CallRecord(
        serial=0, call="a", prompt=(1,), output=(2,), logprobs=(-1.0,), temperature=1.0, logprobs_of="raw"
    )
    second = CallRecord(
        serial=1, call="b", extends=0, kept=2, output=(3,), logprobs=(-1.0,), temperature=0.5, logprobs_of="raw"
    )
    rows: list[TrainingRow] = list(rows_of("t", [first, second]))
    assert [(row.temperature, row.logprobs_of) for row in rows] == [(None, "raw")]
