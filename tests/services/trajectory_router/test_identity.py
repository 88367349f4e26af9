"""CallIdentity of calls: an independent list of what clients and other routers send."""

from __future__ import annotations

import msgspec
import pytest

from services.trajectory_router.identity import identify, read_model_body

BODY = {"model": "m", "messages": []}


@pytest.mark.parametrize(
    ("headers", "fields", "trajectory"),
    [
        ({"X-Trajectory-Id": "t1"}, {}, "t1"),
        ({"X-SMG-Routing-Key": "k"}, {}, "k"),
        ({"X-Session-ID": "s"}, {}, "s"),
        ({"x-aibrix-session-key": "a"}, {}, "a"),
        ({"X-Dynamo-Session-ID": "d"}, {}, "d"),
        ({"X-Claude-Code-Session-Id": "c"}, {}, "c"),
        ({"session-id": "codex"}, {}, "codex"),
        ({}, {"session_id": "b"}, "b"),
        ({}, {"session_params": {"session_id": "p"}}, "p"),
        ({}, {"vllm_xargs": {"agentic_context": "x"}}, "x"),
        ({}, {}, ""),
        ({"X-Trajectory-Id": "t1", "X-Session-ID": "s"}, {"session_id": "b"}, "t1"),
        ({"X-Session-ID": "s"}, {"session_id": "b"}, "s"),
        ({"X-Session-ID": ""}, {"session_id": "b"}, "b"),
        ({}, {"session_id": 7, "session_params": "no", "vllm_xargs": None}, ""),
        ({"Authorization": "Bearer k", "User-Agent": "u"}, {"user": "u"}, ""),
    ],
)
def test_a_call_belongs_to_the_trajectory_that_its_client_names(
    headers: dict[str, str], fields: dict[str, object], trajectory: str
) -> None:
    given = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    found = identify(given, read_model_body(msgspec.json.encode({**BODY, **fields})))
    assert found.trajectory == trajectory


def test_the_trajectory_of_the_url_wins_over_an_agents_session() -> None:
    found = identify([(b"x-session-id", b"s"), (b"x-trajectory-id", b"t")], read_model_body(b"{}"), own="mine")
    assert found.trajectory == "mine"


def test_a_group_is_named_by_a_header_or_the_body() -> None:
    assert identify([(b"x-trajectory-group", b"g")], read_model_body(b"{}")).group == "g"
    assert identify([], read_model_body(b'{"group_id": "h"}')).group == "h"


def test_long_ids_count_by_their_digest_and_differ() -> None:
    first, second = (identify([(b"x-session-id", b"s" * 5000 + end)], read_model_body(b"{}")) for end in (b"1", b"2"))
    assert len(first.trajectory) == 32
    assert first != second
