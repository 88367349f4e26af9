"""Digests, and the answer to a caller for each code of the journal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from services.proxy.records.disk import StoreDisk
from services.proxy.records.ids import random_id
from services.proxy.records.intake import MOST_AT_ONCE, Accepted, Intake, digest_of, of_action
from services.proxy.records.memory import ValkeyMemory
from shared.api.requests import ActionRequest
from shared.bus.functions import Receipt
from shared.messages.actions import ACTIONS, ActionSubmitted, StageWork
from shared.runtime.errors import BadRequest, Conflict, NotFound, Overloaded, TreadleError, Unavailable
from tests.shared.bus.flaky import Flaky
from tests.shared.bus.journal import Journal

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,7}", fullmatch=True)
stages = st.builds(
    StageWork,
    name=names,
    kind=st.sampled_from(["noop", "sleep"]),
    pool=st.sampled_from(["cores@default", "slots@default"]),
    cost=st.dictionaries(st.sampled_from(["cores", "slots"]), st.tuples(st.integers(0, 9), st.integers(0, 9))),
    timeout_s=st.sampled_from([1.0, 10.0]),
    params=st.dictionaries(names, st.integers(0, 9), max_size=2).map(msgspec.json.encode),
    quotas=st.dictionaries(st.sampled_from(["search", "judge"]), st.sampled_from([0.0, 1.0, 2.0])),
)


@given(st.lists(stages, max_size=3), st.lists(stages, max_size=3), st.sampled_from([0.0, 1.0]))
def test_requests_have_the_same_digest_only_when_they_are_the_same(
    one: list[StageWork], other: list[StageWork], priority: float
) -> None:
    assert (digest_of(one, priority) == digest_of(other, priority)) == (one == other)
    assert digest_of(one, priority) != digest_of(one, priority + 1)


# ---- submitting ----------------------------------------------------------------------------------------------------


def noop(request_id: str | None = None, *, echo: str = "") -> ActionSubmitted:
    params = msgspec.Raw(msgspec.json.encode({"echo": echo}))
    return of_action(id_of(request_id), "ada", ActionRequest(kind="noop", params=params, request_id=request_id))


def id_of(request_id: str | None, batch: str = "") -> str:
    """The same for the same request in the same place."""
    return random_id() if request_id is None else f"r{request_id}{batch}".replace(" ", "")


def in_batch(request_id: str, batch: str = "b") -> ActionSubmitted:
    return msgspec.structs.replace(noop(request_id), action=id_of(request_id, batch), batch=batch)


def intake(redis: Redis, *, max_journal: int = 1000, disk: StoreDisk | None = None) -> Intake:
    return Intake(
        redis,
        max_journal=max_journal,
        limit_s=5.0,
        disk=disk or StoreDisk((), reserve_bytes=0),
        memory=ValkeyMemory(redis),
    )


async def test_an_accepted_action_is_in_the_journal_as_it_was_submitted(valkey: Redis, journal: Journal) -> None:
    submitted = noop("r1", echo="hi")

    assert await intake(valkey).submit(submitted) == Accepted(submitted.action, repeated=False)
    assert await journal.messages(ACTIONS) == [submitted]


async def test_a_repeat_is_reported_as_a_repeat(valkey: Redis, journal: Journal) -> None:
    submissions = intake(valkey)

    assert [(await submissions.submit(noop("r1"))).repeated for _ in range(2)] == [False, True]
    assert len(await journal.unanswered()) == 1


async def test_callers_that_come_together_share_round_trips(valkey: Redis, journal: Journal) -> None:
    flaky = Flaky(valkey)
    submissions = intake(flaky)

    accepted = await asyncio.gather(*(submissions.submit(noop(f"r{number}")) for number in range(600)))

    assert not any(one.repeated for one in accepted)
    assert await journal.unanswered() == [one.action for one in accepted]
    assert len(flaky.sent) < 10


def by(tenant: str, count: int) -> list[ActionSubmitted]:
    return [msgspec.structs.replace(noop(f"{tenant}{number}"), tenant=tenant) for number in range(count)]


async def test_another_tenants_action_is_journaled_after_the_flush_under_way(valkey: Redis, journal: Journal) -> None:
    submissions, flaky = by("ada", 2000), Flaky(valkey)
    through = intake(flaky, max_journal=10_000)
    bulk = asyncio.create_task(through.submit_all(submissions))
    while not flaky.sent:  # noqa: ASYNC110  # its first flush is over, the second is under way
        await asyncio.sleep(0)
    (single,) = by("bob", 1)
    await through.submit(single)

    order = await journal.unanswered()
    assert order.index(single.action) <= 2 * MOST_AT_ONCE + 1
    assert all(isinstance(end, Accepted) for end in await bulk)
    rest = [action for action in await journal.unanswered() if action != single.action]
    assert rest == [one.action for one in submissions], "one tenant's actions keep their order"


async def test_the_actions_of_a_cancelled_call_free_their_places(valkey: Redis, journal: Journal) -> None:
    flaky = Flaky(valkey)
    through = intake(flaky, max_journal=10_000)
    bulk = asyncio.create_task(through.submit_all(by("ada", 2000)))
    while not flaky.sent:  # noqa: ASYNC110  # its first flush is over, the second is under way
        await asyncio.sleep(0)
    bulk.cancel()
    await asyncio.wait([bulk])
    (single,) = by("ada", 1)
    await through.submit(msgspec.structs.replace(single, action=id_of("later")))

    assert len(await journal.unanswered()) == 2 * MOST_AT_ONCE + 1


async def test_a_call_with_many_gets_an_end_for_each(valkey: Redis) -> None:
    through = intake(valkey)
    await through.submit(noop("r1", echo="one"))

    first, second, third = await through.submit_all([noop("r1", echo="one"), noop("r1", echo="two"), noop("r2")])

    assert first == Accepted(id_of("r1"), repeated=True)
    assert isinstance(second, Conflict)
    assert third == Accepted(id_of("r2"), repeated=False)
    assert await through.submit_all([]) == []


async def test_a_submission_whose_reply_was_lost_is_journalled_once(valkey: Redis, journal: Journal) -> None:
    flaky = Flaky(valkey)
    flaky.failures = ["after", "before"]

    await intake(flaky).submit(noop("r1"))

    assert len(await journal.unanswered()) == 1


async def test_the_same_id_with_another_body_is_a_conflict(valkey: Redis) -> None:
    submissions = intake(valkey)
    await submissions.submit(noop("r1", echo="one"))

    with pytest.raises(Conflict, match="'r1' was used with another body"):
        await submissions.submit(noop("r1", echo="two"))


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ("none", NotFound, "no batch 'none'; it was never opened"),
        ("sealed", Conflict, "is sealed and accepts no more"),
        ("small", Conflict, "already has its 1 requests"),
    ],
)
async def test_a_closed_or_full_batch_rejects_with_its_reason(
    valkey: Redis, journal: Journal, batch: str, error: type[TreadleError], message: str
) -> None:
    await journal.open("sealed")
    await journal.open("small", size=1)
    await journal.submit("a1", batch="sealed")
    await journal.submit("a2", batch="small")
    await journal.end("sealed", "sealed")

    with pytest.raises(error, match=message):
        await intake(valkey).submit(in_batch("r1", batch))


async def test_a_full_journal_is_reported_with_retry_after(valkey: Redis) -> None:
    submissions = intake(valkey, max_journal=1)
    await submissions.submit(noop("r1"))

    with pytest.raises(Overloaded) as refusal:
        await submissions.submit(noop("r2"))
    assert refusal.value.retry_after_s > 0


async def test_while_the_disk_is_short_nothing_new_is_accepted_and_repeats_are(
    valkey: Redis, journal: Journal, tmp_path: Path
) -> None:
    disk = StoreDisk([tmp_path], reserve_bytes=0)
    submissions = intake(valkey, disk=disk)
    await submissions.submit(noop("r1"))
    disk.measure()
    assert disk.space is not None
    disk.data_set_bytes = disk.space.total_bytes + 1
    ends = await asyncio.gather(submissions.submit(noop("r1")), submissions.submit(noop("r2")), return_exceptions=True)
    assert isinstance(ends[0], Accepted)
    assert ends[0].repeated
    assert isinstance(ends[1], Overloaded)
    assert "the disk of the stores" in str(ends[1])
    assert "MiB free, and new work needs" in str(ends[1])
    assert len(await journal.unanswered()) == 1


async def test_one_refusal_leaves_the_others_of_its_round_trip_alone(valkey: Redis, journal: Journal) -> None:
    submissions = intake(valkey)
    await submissions.submit(noop("first leaves alone"))
    ends = await asyncio.gather(
        *(submissions.submit(one) for one in (noop("r1"), in_batch("r2", "none"), noop("r3"))), return_exceptions=True
    )

    assert [type(end) for end in ends] == [Accepted, NotFound, Accepted]
    assert len(await journal.unanswered()) == 3


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("dance", b"{}", "unknown kind 'dance'"),
        ("noop", b'{"ekko": ""}', "params of noop: .*ekko"),
        ("sleep", b"{}", "params of sleep: .*seconds"),
        ("noop", b"[]", "params of noop"),
    ],
)
def test_an_invalid_action_is_refused_with_its_error(kind: str, params: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        of_action("a1", "ada", ActionRequest(kind=kind, params=msgspec.Raw(params)))


# ---- calls that the leader decides about ---------------------------------------------------------------------------


class Deciding:
    """A leader at this replica, with one answer for all calls."""

    def __init__(self, receipt: Receipt | None = None, *, takes: bool = True, replies: bool = True) -> None:
        self.receipt, self.takes, self.replies = receipt, takes, replies
        self.asked: list[str] = []

    def submit(self, submitted: ActionSubmitted) -> asyncio.Future[Receipt | None] | None:
        self.asked.append(submitted.action)
        if not self.takes:
            return None
        future: asyncio.Future[Receipt | None] = asyncio.get_running_loop().create_future()
        if self.replies:
            future.set_result(self.receipt)
        return future


@pytest.mark.parametrize(("code", "repeated"), [("accepted", False), ("repeated", True)])
async def test_what_the_leader_has_submitted_is_not_submitted_again(
    valkey: Redis, journal: Journal, code: Literal["accepted", "repeated"], repeated: bool
) -> None:
    through = intake(valkey)
    through.leader = Deciding(Receipt(code, "1-1"))
    assert await through.submit(noop("r1")) == Accepted("rr1", repeated)
    assert await journal.unanswered() == []


async def test_what_the_journal_rejects_there_is_rejected_here(valkey: Redis, journal: Journal) -> None:
    through = intake(valkey)
    through.leader = Deciding(Receipt("journal-full", ""))
    with pytest.raises(Overloaded):
        await through.submit(noop("r1"))
    assert await journal.unanswered() == []


@pytest.mark.parametrize("takes", [False, True])
async def test_what_the_leader_leaves_goes_to_the_journal(valkey: Redis, journal: Journal, takes: bool) -> None:
    through = intake(valkey)
    through.leader = leader = Deciding(takes=takes)
    assert await through.submit(noop("r1")) == Accepted("rr1", repeated=False)
    assert (leader.asked, await journal.unanswered()) == (["rr1"], ["rr1"])


async def test_while_the_disk_is_short_nothing_is_granted_at_once(valkey: Redis, journal: Journal) -> None:
    disk = StoreDisk((Path("/"),), reserve_bytes=1 << 60)
    disk.measure()
    through = intake(valkey, disk=disk)
    through.leader = leader = Deciding(Receipt("accepted", "1-1"))
    with pytest.raises(Overloaded):
        await through.submit(noop("r1"))
    assert leader.asked == []


async def test_a_call_about_which_nothing_is_decided_ends(valkey: Redis, journal: Journal) -> None:
    through = Intake(
        valkey, max_journal=10, limit_s=0.05, disk=StoreDisk((), reserve_bytes=0), memory=ValkeyMemory(valkey)
    )
    through.leader = Deciding(replies=False)
    with pytest.raises(Unavailable):
        await through.submit(noop("r1"))
