"""Actions that the leader grants for its own callers before they are journaled, on a real store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

import msgspec
import pytest
from redis.asyncio import Redis

from services.cpu_manager.kinds import RESOURCES
from services.proxy.leader.dispatching import DispatchFailed
from services.proxy.leader.interpreter import Interpreter
from services.proxy.leader.leader import Leader
from services.proxy.leader.writes import Forget
from services.proxy.records.intake import submission_of
from shared.bus import keys
from shared.bus.connection import ValkeyClock, command
from shared.bus.functions import Answering, Receipt, cancel, journal_actions
from shared.bus.tail import Tail
from shared.messages.actions import ACTIONS, ActionSubmitted
from shared.messages.grants import Granted, InventoryRequested, Revoked, grants_topic
from shared.messages.outcomes import OUTCOMES, Finished
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import AttemptsEnded, Stimulus
from shared.policy.model.formulation import AskInventory
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.runtime.errors import Overloaded, Unavailable
from tests.services.proxy.mesh import StillClock, from_node, hello, inventory, stage, submitted
from tests.shared.bus.flaky import Flaky
from tests.shared.bus.journal import Journal, lead, resign

MOST = 4
STREAM = grants_topic("n", "1")
Asked = asyncio.Future[Receipt | None]


@dataclass
class Term:
    """A leader with one node of two cores. `run` writes what was decided, and decides what has come."""

    journal: Journal
    leader: Leader
    interpreter: Interpreter
    flaky: Flaky
    tail: Tail
    answered: list[tuple[Answering, bool]]

    @property
    def redis(self) -> Redis:
        return self.journal.redis

    def ask(self, one: ActionSubmitted) -> Asked:
        asked = self.leader.local_actions.submit(one)
        assert asked is not None
        return asked

    async def run(self) -> None:
        self.leader.local_actions.decide()
        while self.interpreter._waiting and not self.interpreter.deposed:
            await self.interpreter._flush()
            self.leader.local_actions.decide()
        self.leader.dispatcher.check()

    async def read(self) -> None:
        """Handle what the journal and the node have sent."""
        self.leader.take(await self.tail.read(block=False))
        await self.run()

    async def run_for_a_late_caller(self, asked: Asked) -> None:
        """Write, while its caller gives up during the scheduled failures of the connection."""
        running = asyncio.ensure_future(self.run())
        while self.flaky.failures:  # noqa: ASYNC110  # polls the connection
            await asyncio.sleep(0)
        asked.set_exception(Unavailable(what="too late"))
        await running
        with pytest.raises(Unavailable):
            await asked

    async def submit(self, one: ActionSubmitted) -> Receipt | None:
        asked = self.ask(one)
        await self.run()
        async with asyncio.timeout(5.0):
            return await asked

    async def journal_it(self, one: ActionSubmitted) -> Receipt:
        """Submit it as another replica does."""
        (receipt,) = await journal_actions(self.redis, [submission_of(one)], max_journal=100)
        return receipt

    async def granted(self) -> list[str]:
        """Actions whose grants were sent, in order. Fails if one was revoked."""
        sent = await self.journal.messages(STREAM)
        assert not any(isinstance(one, Revoked) for one in sent)
        return [one.action for one in sent if isinstance(one, Granted)]

    async def finish(self, action: str, attempt: int = 1) -> None:
        """Let the node report a verdict; handle it."""
        finished = Finished(
            action=action, node="n", incarnation="1", epoch=self.journal.epoch, attempt=attempt, stage=0,
            result=AttemptResult("ok", True, 1.0), units={"cores": 1},
        )  # fmt: skip
        await command(self.redis, "XADD", OUTCOMES.name, "*", "m", OUTCOMES.encode(finished))
        await self.read()

    async def record(self, action: str) -> dict[str, bytes]:
        return await self.journal.fields(keys.action(action))

    def free(self) -> int:
        node = self.leader.dispatcher.node("n")
        assert node is not None
        return node.owned["cores"] - node.used["cores"]

    def lose(self, attempt: int) -> None:
        """Let an attempt of action `a` be lost, before its node has heard of it."""
        lost = Ended("a", "n", attempt, 0, AttemptResult("lost"), units={"cores": 1})
        self.leader.handle(AttemptsEnded((lost,)))


@pytest.fixture
async def term(journal: Journal) -> Term:
    clock = await ValkeyClock.measure(journal.redis)
    flaky, answered = Flaky(journal.redis), list[tuple[Answering, bool]]()
    interpreter = Interpreter(
        flaky, journal.epoch, lambda *one: answered.append(one), keep_batch_s=600.0, max_journal=MOST
    )
    leader = Leader(journal.epoch, Dispatcher(specs=RESOURCES), interpreter, clock, lambda _: 60)
    now = clock.unix()
    leader.take([from_node(hello(cores=2), at=now), from_node(inventory(epoch=journal.epoch), at=now)])
    tail = Tail(journal.redis, {ACTIONS: "0", OUTCOMES: "0"}, decided_by=journal.epoch)
    made = Term(journal, leader, interpreter, flaky, tail, answered)
    await made.run()
    flaky.sent.clear()
    return made


async def test_one_write_journals_and_grants(term: Term) -> None:
    receipt = await term.submit(submitted("a"))
    assert receipt is not None
    assert receipt.code == "accepted"
    assert term.flaky.sent == ["submit_granted"]
    assert await term.granted() == ["a"]
    assert await term.journal.unanswered() == ["a"]
    await term.finish("a")
    ((answering, counts),) = term.answered
    assert (answering.action, answering.entry, counts) == ("a", receipt.entry, True)
    assert await term.journal.unanswered() == []
    assert term.free() == 2


async def test_its_time_begins_with_the_call(term: Term) -> None:
    """The journal has it a moment later, and its parts must not be longer than its whole."""
    term.ask(submitted("a"))
    term.leader.local_actions.decide()
    await asyncio.sleep(0.05)
    await term.run()
    await term.finish("a")
    ((answering, _),) = term.answered
    act = msgspec.json.decode(answering.answer)["act"]
    assert act["total_s"] >= max(0.05, act["queue_s"] + act["execution_s"])


async def test_both_ways_leave_the_same_in_the_store(term: Term) -> None:
    await term.journal_it(submitted("far"))
    await term.read()
    await term.submit(submitted("near"))

    def comparable(record: dict[str, bytes]) -> dict[str, bytes]:
        return {**record, "entry": b"some", "digest": b"some"}

    far, near = await term.record("far"), await term.record("near")
    assert far["digest"] == near["digest"]
    assert comparable(far) == comparable(near)
    sent = [one for one in await term.journal.messages(STREAM) if isinstance(one, Granted)]
    assert [msgspec.structs.replace(one, action="", budget_s=0.0) for one in sent[:1]] == [
        msgspec.structs.replace(one, action="", budget_s=0.0) for one in sent[1:]
    ]
    entries = await command(term.redis, "XRANGE", ACTIONS.name, "-", "+")
    fields = [dict(zip(row[::2], row[1::2], strict=True)) for _, row in entries]
    assert fields[1].pop(b"decided") == str(term.journal.epoch).encode()
    assert [one.keys() for one in fields] == [fields[0].keys()] * 2
    assert [one[b"index"] for one in fields] == [b"-1", b"-1"]
    for action in ("far", "near"):
        await term.finish(action)
    assert len(term.answered) == 2
    assert await command(term.redis, "TTL", STREAM.name) > 0


async def test_the_leader_does_not_read_the_entry_and_its_successor_does(term: Term) -> None:
    await term.submit(submitted("a"))
    assert await term.tail.read(block=False) == []
    (entry,) = await Tail(term.redis, {ACTIONS: "0"}, decided_by=term.journal.epoch + 1).read(block=False)
    assert (entry.message, entry.index) == (submitted("a"), -1)


async def test_what_cannot_start_at_once_goes_through_the_journal(term: Term) -> None:
    asked = [term.ask(submitted(name)) for name in "abc"]
    await term.run()
    receipts = [await one for one in asked]
    assert [one and one.code for one in receipts] == ["accepted", "accepted", None]
    assert "c" not in term.leader.unanswered
    assert await term.record("c") == {}
    await term.journal_it(submitted("c"))
    await term.read()
    assert term.leader.local_actions.submit(submitted("d")) is None, "the pool has work queued"
    await term.finish("a")
    assert await term.granted() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "one",
    [
        submitted("a", batch="b"),
        msgspec.structs.replace(submitted("a"), trajectory="t"),
        submitted("a", msgspec.structs.replace(stage(), quotas={"search": 1.0})),
        submitted("a", stage("first"), msgspec.structs.replace(stage("second"), quotas={"search": 1.0})),
    ],
    ids=["in a batch", "in a trajectory", "with quotas", "with quotas later"],
)
def test_work_whose_records_are_more_goes_through_the_journal(term: Term, one: ActionSubmitted) -> None:
    assert term.leader.local_actions.submit(one) is None


async def test_a_refused_action_goes_through_the_journal(term: Term) -> None:
    """The memory of a leader that is deposed without knowing it must refuse nothing."""
    assert await term.submit(submitted("a", stage(cores=-1))) is None
    assert await term.record("a") == {}
    assert term.leader.unanswered == {}


@pytest.mark.parametrize("other_body", [False, True])
async def test_a_repeat_of_answered_work_is_not_executed_again(term: Term, other_body: bool) -> None:
    await term.submit(submitted("a"))
    await term.finish("a")
    repeat = submitted("a", stage(timeout_s=11.0)) if other_body else submitted("a")
    receipt = await term.submit(repeat)
    assert receipt is not None
    assert receipt.code == ("conflict" if other_body else "repeated")
    assert await term.granted() == ["a"]
    assert len(term.answered) == 1
    assert (term.leader.unanswered, term.free()) == ({}, 2)
    assert await term.submit(submitted("b")) is not None


async def test_a_repeat_of_unanswered_work_is_left_to_the_journal(term: Term) -> None:
    first, second = term.ask(submitted("a")), term.ask(submitted("a"))
    await term.run()
    receipt = await first
    assert receipt is not None
    assert (receipt.code, await second, await term.submit(submitted("a"))) == ("accepted", None, None)
    assert (await term.journal_it(submitted("a"))).code == "repeated"
    await term.read()
    await term.finish("a")
    assert (await term.granted(), len(term.answered)) == (["a"], 1)


@pytest.mark.parametrize("read_first", [False, True])
@pytest.mark.parametrize("other_body", [False, True])
async def test_an_entry_that_came_by_another_way_meanwhile_is_executed_once(
    term: Term, read_first: bool, other_body: bool
) -> None:
    """Two callers send the same request through two replicas, perhaps with other bodies; the other one is journaled
    first.
    """
    asked = term.ask(submitted("a", stage(timeout_s=11.0 if other_body else 10.0)))
    term.leader.local_actions.decide()
    assert (await term.journal_it(submitted("a"))).code == "accepted"
    if read_first:
        term.leader.take(await term.tail.read(block=False))
    await term.run()
    receipt = await asked
    assert receipt is not None
    assert receipt.code == ("conflict" if other_body else "repeated")
    await term.read()
    assert await term.granted() == ["a"]
    (sent,) = [one for one in await term.journal.messages(STREAM) if isinstance(one, Granted)]
    assert sent.timeout_s == 10.0, "the accepted body"
    await term.finish("a")
    assert (len(term.answered), term.free()) == (1, 2)


async def test_a_rejected_action_is_not_written_by_the_repeat_of_its_flush(term: Term) -> None:
    entries = [await term.journal.entry(f"work{number}") for number in range(MOST)]
    asked = term.ask(submitted("a"))
    term.leader.local_actions.decide()
    term.interpreter.discard("1-1")
    term.flaky.failures = [None, "before"]  # the submission is rejected, then the connection is lost
    running = asyncio.ensure_future(term.run())
    receipt = await asked
    assert receipt is not None
    assert receipt.code == "journal-full"
    await command(term.redis, "XDEL", ACTIONS.name, *entries)
    await running
    assert (await term.record("a"), await term.granted(), term.free()) == ({}, [], 2)


async def test_a_full_journal_rejects_and_leaves_nothing(term: Term) -> None:
    entries = [await term.journal.entry(f"work{number}") for number in range(MOST)]
    for name in "ab":
        receipt = await term.submit(submitted(name))
        assert receipt is not None
        assert receipt.code == "journal-full"
        assert (await term.record(name), term.leader.unanswered, term.free()) == ({}, {}, 2)
    assert await term.granted() == []
    await command(term.redis, "XDEL", ACTIONS.name, *entries)
    receipt = await term.submit(submitted("a"))
    assert receipt is not None
    assert receipt.code == "accepted"


async def test_a_tenant_whose_answers_fill_its_part_is_rejected(term: Term) -> None:
    term.interpreter._most_kept = lambda: 10
    await command(term.redis, "HSET", keys.KEPT, "ada", 11)
    receipt = await term.submit(submitted("a"))
    assert receipt is not None
    assert (receipt.code, await term.granted(), term.free()) == ("tenant-full", [], 2)


async def test_full_memory_rejects_and_leaves_nothing(term: Term) -> None:
    before = (await command(term.redis, "CONFIG", "GET", "maxmemory"))[1]
    await command(term.redis, "CONFIG", "SET", "maxmemory", "1mb")
    try:
        asked = term.ask(submitted("a"))
        await term.run()
        with pytest.raises(Overloaded):
            await asked
    finally:
        await command(term.redis, "CONFIG", "SET", "maxmemory", before)
    assert (await term.record("a"), term.leader.unanswered, term.free()) == ({}, {}, 2)
    assert await term.granted() == []


@pytest.mark.parametrize("full", [False, True])
async def test_an_action_whose_reply_was_lost_is_found_by_the_repeat(term: Term, full: bool) -> None:
    asked = term.ask(submitted("a"))
    term.leader.local_actions.decide()
    term.flaky.failures = ["after"]
    running = asyncio.ensure_future(term.run())
    while term.flaky.failures or not await term.record("a"):  # noqa: ASYNC110  # polls the store
        await asyncio.sleep(0)
    entries = [await term.journal.entry(f"work{number}") for number in range(MOST if full else 0)]
    await running
    receipt = await asked
    assert receipt is not None
    assert receipt.code == "accepted", "although the journal may be over its bound by now"
    assert await term.granted() == ["a"]
    if entries:
        await command(term.redis, "XDEL", ACTIONS.name, *entries)
    await term.finish("a")
    assert len(term.answered) == 1


async def test_a_repeat_after_a_lost_connection_does_not_take_an_earlier_answer_for_its_own(term: Term) -> None:
    await term.submit(submitted("a"))
    await term.finish("a")
    asked = term.ask(submitted("a"))
    term.leader.local_actions.decide()
    term.flaky.failures = ["before"]
    await term.run()
    receipt = await asked
    assert receipt is not None
    assert (receipt.code, await term.granted()) == ("repeated", ["a"])


async def test_an_answer_before_the_journal_has_the_action_waits_for_it(term: Term) -> None:
    """A node's report may be read before the reply to the write that it follows from."""
    asked = term.ask(submitted("a"))
    term.leader.local_actions.decide()
    ended = Ended("a", "n", 1, 0, AttemptResult("ok", True, 1.0), units={"cores": 1})
    term.leader.handle(AttemptsEnded((ended,)))
    assert "a" not in term.leader.unanswered
    assert term.answered == []
    await term.run()
    receipt = await asked
    ((answering, counts),) = term.answered
    assert receipt is not None
    assert (answering.entry, counts) == (receipt.entry, True)


@pytest.mark.parametrize("losses", [1, 2])
async def test_later_grants_of_a_rejected_action_are_not_sent(term: Term, losses: int) -> None:
    """Attempts are lost between decision and write, and the journal knows the request already."""
    await term.submit(submitted("a"))
    await term.finish("a")
    asked = term.ask(submitted("a"))
    term.leader.local_actions.decide()
    for attempt in range(1, losses + 1):
        term.lose(attempt)
    action = term.leader.dispatcher.action("a")
    assert action is not None
    assert action.attempt == losses + 1
    await term.run()
    receipt = await asked
    assert receipt is not None
    assert (receipt.code, await term.granted()) == ("repeated", ["a"])
    assert (term.leader.unanswered, term.free(), term.interpreter.void) == ({}, 2, set())


async def test_another_grant_of_an_accepted_action_is_sent(term: Term) -> None:
    asked = term.ask(submitted("a"))
    term.leader.local_actions.decide()
    term.lose(1)
    await term.run()
    receipt = await asked
    assert receipt is not None
    assert (receipt.code, await term.granted()) == ("accepted", ["a", "a"])
    assert (await term.record("a"))["grant"] == b"2:n"
    await term.finish("a", attempt=2)
    assert (len(term.answered), term.free()) == (1, 2)


@pytest.mark.parametrize("read_first", [False, True])
async def test_an_answer_of_a_withdrawn_action_does_not_concern_the_accepted_one(term: Term, read_first: bool) -> None:
    """Its attempt is lost before the write, and it is not repeatable. Another replica has journaled the request."""
    once = submitted("a", msgspec.structs.replace(stage(), repeatable=False))
    asked = term.ask(once)
    term.leader.local_actions.decide()
    assert (await term.journal_it(once)).code == "accepted"
    term.lose(1)
    if read_first:
        term.leader.take(await term.tail.read(block=False))
    await term.run()
    await term.read()
    receipt = await asked
    assert receipt is not None
    assert (receipt.code, await term.granted(), term.free()) == ("repeated", ["a"], 1)
    await term.finish("a")
    ((answering, _),) = term.answered
    assert b'"ended":"ok"' in answering.answer


async def test_a_cancellation_of_what_came_by_another_way_is_handled_after_it(term: Term) -> None:
    asked = term.ask(submitted("a"))
    term.leader.local_actions.decide()
    assert (await term.journal_it(submitted("a"))).code == "accepted"
    assert await cancel(term.redis, "a", "by its caller") == "requested"
    term.leader.take(await term.tail.read(block=False))
    await term.run()
    receipt = await asked
    assert receipt is not None
    assert receipt.code == "repeated"
    sent = [type(one) for one in await term.journal.messages(STREAM)]
    assert sent == [InventoryRequested, Granted, Revoked]


async def test_grants_to_a_node_leave_in_the_order_of_their_decisions(term: Term) -> None:
    await term.journal_it(submitted("x"))
    term.leader.take(await term.tail.read(block=False))
    asked = term.ask(submitted("a"))
    await term.run()
    assert await asked is not None
    assert await term.granted() == ["x", "a"]


async def test_a_failed_dispatcher_decides_and_writes_nothing_more(term: Term) -> None:
    asked = term.ask(submitted("a"))
    with pytest.raises(DispatchFailed):
        term.leader.handle(cast("Stimulus", object()))
    term.leader.handle(cast("Stimulus", object()))  # its state is not used again
    term.interpreter._decide()
    assert term.interpreter.deposed
    assert not asked.done()
    assert await term.record("a") == {}


async def test_what_was_kept_is_handled_without_a_judgement_of_silence(term: Term) -> None:
    """After an outage of Valkey the reply to a write may come before the reports of nodes."""
    asked = term.ask(submitted("a"))
    term.leader.local_actions.decide()
    assert (await term.journal_it(submitted("a"))).code == "accepted"
    term.leader.take(await term.tail.read(block=False))
    clock = StillClock(term.leader._clock.unix() + 60.0)  # longer than a node may be silent
    term.leader._clock = term.leader.local_actions._clock = clock
    await term.run()
    assert await asked is not None
    assert term.leader.dispatcher.node("n") is not None
    assert await term.granted() == ["a"]


async def test_actions_that_cannot_start_are_withdrawn_before_another_round(term: Term) -> None:
    """The first one reserves the cores that the second one would take."""
    await term.submit(submitted("before"))
    large, small = term.ask(submitted("large", stage(cores=2))), term.ask(submitted("small", stage(timeout_s=900.0)))
    await term.run()
    assert (await large, await small) == (None, None)
    assert await term.granted() == ["before"]
    for action in (submitted("large", stage(cores=2)), submitted("small", stage(timeout_s=900.0))):
        await term.journal_it(action)
    await term.read()
    await term.finish("before")
    assert await term.granted() == ["before", "large"]


async def test_a_write_that_another_one_kept_from_leaving_was_not_tried(term: Term) -> None:
    """Its caller gives up meanwhile, so it is not executed."""
    asked = term.ask(submitted("a"))
    term.leader.local_actions.decide()
    term.interpreter.put(Forget("t1", "unmade", "why"), names=("t1",))
    term.flaky.failures = ["before"]  # the end of the trajectory is written first, in a call of its own
    await term.run_for_a_late_caller(asked)
    assert (await term.record("a"), await term.granted(), term.free()) == ({}, [], 2)


async def test_a_held_caller_that_tries_again_is_not_cancelled(term: Term) -> None:
    """The text of its error names Valkey, and it sends the same id again."""
    asked = term.ask(msgspec.structs.replace(submitted("a"), held_by="me"))
    term.leader.local_actions.decide()
    term.flaky.failures = ["after"]
    await term.run_for_a_late_caller(asked)
    assert [type(one) for one in await term.journal.messages(STREAM)] == [InventoryRequested, Granted]


async def test_a_request_for_an_inventory_comes_after_the_grants_that_it_must_contain(term: Term) -> None:
    term.ask(submitted("a"))
    term.leader.local_actions.decide()
    term.leader._ask_inventory(AskInventory("n"))
    await term.run()
    kinds = [type(one) for one in await term.journal.messages(STREAM)]
    assert kinds[-2:] == [Granted, InventoryRequested]


async def test_a_deposed_leader_writes_nothing_and_leaves_its_callers_to_the_journal(term: Term) -> None:
    asked, undecided = term.ask(submitted("a")), None
    term.leader.local_actions.decide()
    await resign(term.redis, "me")
    await lead(term.redis, "another", 30.0)
    undecided = term.ask(submitted("b"))
    await term.run()
    assert term.interpreter.deposed
    term.leader.local_actions.close()
    assert (await asked, await undecided) == (None, None)
    assert (await term.record("a"), await term.granted()) == ({}, [])


async def test_a_caller_that_goes_before_the_decision_submits_nothing(term: Term) -> None:
    term.ask(submitted("a")).cancel()
    await term.run()
    assert (await term.record("a"), term.leader.unanswered) == ({}, {})


async def test_a_caller_that_goes_before_the_write_has_its_action_withdrawn(term: Term) -> None:
    gone, present = term.ask(submitted("a")), term.ask(submitted("b"))
    term.leader.local_actions.decide()
    gone.cancel()
    term.flaky.failures = ["before"]
    await term.run()
    assert await present is not None
    assert (await term.record("a"), await term.granted(), list(term.leader.unanswered)) == ({}, ["b"], ["b"])
    assert term.free() == 1


@pytest.mark.parametrize("held", [False, True])
async def test_a_caller_that_goes_during_the_write_has_its_action_executed_unless_it_was_held(
    term: Term, held: bool
) -> None:
    """Its own request to cancel it has come before the journal knew the action."""
    one = msgspec.structs.replace(submitted("a"), held_by="me") if held else submitted("a")
    asked = term.ask(one)
    term.leader.local_actions.decide()
    term.flaky.failures = ["before"]
    running = asyncio.ensure_future(term.run())
    while term.flaky.failures:  # noqa: ASYNC110  # polls the connection
        await asyncio.sleep(0)
    asked.cancel()
    await running
    sent = [type(one) for one in await term.journal.messages(STREAM)]
    assert sent == [InventoryRequested, Granted] + [Revoked] * held
    if not held:
        await term.finish("a")
        assert len(term.answered) == 1
