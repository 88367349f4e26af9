"""Events of a stream, cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trajectory_router.recording import events
from services.trajectory_router.recording.events import EventSplitter, TooLong

event = st.sampled_from(
    [
        b": keep-alive\n\n",
        b'data: {"a": 1}\n\n',
        b"event: x\r\ndata: {}\r\n\r\n",
        b"data:[DONE]\n\n",
        b"data: a\ndata: b\n\n",
    ]
)


@given(st.lists(event), st.data())
def test_bytes_are_kept_and_cuts_change_nothing(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts) + b"data: rest"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    splitter = EventSplitter()
    found = [
        one
        for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)
        for one in splitter.feed(whole[begin:end])
    ]
    assert [one.raw for one in found] == parts
    assert splitter.rest() == b"data: rest"


def test_data_of_an_event() -> None:
    (comment, one, two) = EventSplitter().feed(b": c\n\nevent: e\ndata: {}\nid: 1\n\ndata: a\ndata: b\n\n")
    assert (comment.data, one.data, two.data) == (b"", b"{}", b"a\nb")
    assert one.with_data(b"[]") == b"event: e\nid: 1\ndata: []\n\n"


def test_an_event_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_EVENT", 1000)
    splitter = EventSplitter()
    assert list(splitter.feed(b"x" * 1000)) == []
    with pytest.raises(TooLong):
        list(splitter.feed(b"x"))
