"""The leader's writes: in order, repeated whole while Valkey is away, and none after another leader took over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.proxy.leader.interpreter import MOST_AT_ONCE, MOST_SHARED, Interpreter
from services.proxy.leader.writes import Discard, Forget, Write
from services.proxy.metrics import UNTRACED
from shared.bus import functions, trajectories
from shared.bus.connection import command
from shared.bus.functions import Advancing, Answering, Granting
from shared.bus.trajectories import StoredPlacement, pack
from shared.messages.environments import EnvironmentSpec
from tests.shared.bus.flaky import Flaky, When
from tests.shared.bus.journal import Journal, lead, resign
from tests.shared.bus.soon import soon
from tests.shared.bus.test_trajectory_functions import opened


class InterpreterDriver:
    """An interpreter on a connection that can fail, and its reports of durable answers."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.flaky = Flaky(journal.redis)
        self.reported: list[tuple[str, bool]] = []
        self.interpreter = Interpreter(self.flaky, journal.epoch, self._answered, keep_batch_s=600.0)

    def _answered(self, answering: Answering, counts: bool) -> None:
        self.reported.append((answering.action, counts))

    def put(self, *writes: Write) -> None:
        for write in writes:
            self.interpreter.put(write)

    async def sent(self) -> list[bytes]:
        return [fields[1] for _, fields in await command(self.journal.redis, "XRANGE", "grants.n.1", "-", "+")]

    async def all_written(self) -> None:
        """Wait until two messages in a row have been written: then all earlier flushes are over."""
        for name in ("first", "last"):
            self.interpreter.put_after_all(Granting(name, b"mark"))

            async def came(name: str = name) -> bool:
                return bool(await command(self.journal.redis, "EXISTS", name))

            await soon(came)


@pytest.fixture
def driver(journal: Journal) -> InterpreterDriver:
    return InterpreterDriver(journal)


@asynccontextmanager
async def running(driver: InterpreterDriver) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(driver.interpreter.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def to_node(*payloads: bytes) -> list[Write]:
    return [Granting("grants.n.1", payload) for payload in payloads]


def answer(action: str, entry: str, batch: str = "") -> Answering:
    return Answering(action, entry, batch, f"answer of {action}".encode(), 60)


async def test_messages_leave_in_the_order_they_were_put(driver: InterpreterDriver) -> None:
    payloads = [b"%d" % number for number in range(1000)]
    driver.put(*to_node(*payloads[:300]))
    async with running(driver):
        driver.put(*to_node(*payloads[300:]))
        await driver.all_written()

    assert await driver.sent() == payloads


async def test_the_order_holds_while_valkey_is_away_and_nothing_is_lost(driver: InterpreterDriver) -> None:
    payloads = [b"%d" % number for number in range(600)]
    driver.flaky.failures = ["before", "after", None, "before", "after"]
    driver.put(*to_node(*payloads))
    async with running(driver):
        await driver.all_written()

    assert list(dict.fromkeys(await driver.sent())) == payloads, "a message may come twice, but never out of order"


async def test_an_answer_is_reported_when_it_is_durable(driver: InterpreterDriver, journal: Journal) -> None:
    driver.put(answer("a1", await journal.entry("a1")))
    async with running(driver):
        await driver.all_written()

    assert driver.reported == [("a1", True)]
    assert (await journal.fields("action:a1"))["answer"] == b"answer of a1"


async def test_effects_of_outcomes_are_told_when_they_are_durable(driver: InterpreterDriver, journal: Journal) -> None:
    stored: list[str] = []
    driver.interpreter.stored = stored.append
    entries = [await journal.entry(action) for action in ("a1", "a2")]
    driver.flaky.failures = ["before", "after"]
    driver.put(Advancing("a1", 1, b"[]", ""), answer("a2", entries[1]))
    assert stored == []
    async with running(driver):
        await driver.all_written()

    assert list(dict.fromkeys(stored)) == ["a1", "a2"], "a step that is tried again is told again"
    assert (await journal.fields("action:a1"))["stage"] == b"1"


async def test_an_answer_that_was_given_before_is_reported_as_such(driver: InterpreterDriver, journal: Journal) -> None:
    entry = await journal.entry("a1")
    await journal.finish("a1", entry, answer=b"first")
    driver.put(answer("a1", entry))
    async with running(driver):
        await driver.all_written()

    assert driver.reported == [("a1", False)]
    assert (await journal.fields("action:a1"))["answer"] == b"first"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_answer_survives_a_cut_and_is_reported_once(
    driver: InterpreterDriver, journal: Journal, when: When
) -> None:
    await journal.open()
    driver.put(answer("a1", await journal.entry("a1", "b"), "b"))
    driver.flaky.failures = [when]
    async with running(driver):
        await driver.all_written()

    assert driver.reported == [("a1", when == "before")], "after a lost reply only the store has the result"
    assert await journal.results() == [b"answer of a1"]
    assert await journal.counts() == ("open", 1, 1)


async def test_answers_and_messages_put_together_both_arrive(driver: InterpreterDriver, journal: Journal) -> None:
    entry = await journal.entry("a1")
    await journal.entry("a2")
    driver.put(*to_node(b"one"), answer("a1", entry), Granting("grants.n.1", b"two", "a2", "1:n"))
    async with running(driver):
        await driver.all_written()

    assert await driver.sent() == [b"one", b"two"]
    assert driver.reported == [("a1", True)]
    assert (await journal.fields("action:a2"))["grant"] == b"1:n"


async def test_a_grant_of_the_next_stage_is_marked_after_the_step(driver: InterpreterDriver, journal: Journal) -> None:
    await journal.entry("a1")
    driver.put(Advancing("a1", 1, b"[]"), Granting("grants.n.1", b"stage 1", "a1", "1:n"))
    async with running(driver):
        await driver.all_written()

    fields = await journal.fields("action:a1")
    assert (fields["stage"], fields["grant"]) == (b"1", b"1:n")


async def test_a_cancellation_is_deleted_only_after_its_consequences_are_written(
    driver: InterpreterDriver, journal: Journal
) -> None:
    entry = await journal.entry("a1")
    await functions.cancel(journal.redis, "a1", "asked")
    ((asked, _),) = await command(journal.redis, "XREVRANGE", "actions", "+", "-", "COUNT", 1)
    driver.put(answer("a1", entry), Discard(asked.decode()))
    async with running(driver):
        await driver.all_written()

    assert [name for name in driver.flaky.sent if name != "send_grants"] == ["answer_actions", "discard"]
    assert await journal.cancels() == []


async def test_a_deposed_leader_stops_and_writes_nothing_more(driver: InterpreterDriver, journal: Journal) -> None:
    entry = await journal.entry("a1")
    await resign(journal.redis, "me")
    await lead(journal.redis, "you", 30.0)
    driver.put(*to_node(b"late"), answer("a1", entry), Advancing("a1", 1, b"[]"), Discard(entry))

    async with asyncio.timeout(20):
        await driver.interpreter.run()

    assert driver.interpreter.deposed
    assert (await driver.sent(), driver.reported, await journal.unanswered()) == ([], [], ["a1"])
    assert "stage" not in await journal.fields("action:a1")


async def test_a_leader_deposed_by_another_part_stops_before_the_next_flush(driver: InterpreterDriver) -> None:
    driver.interpreter.deposed = True
    driver.put(*to_node(b"late"))

    async with asyncio.timeout(20):
        await driver.interpreter.run()

    assert driver.flaky.sent == []


def begins(action: str, node: str) -> Granting:
    """Grant that begins the environment of trajectory t1."""
    return Granting(
        "grants.n.1", node.encode(), action, f"1:{node}", "t1", pack(StoredPlacement(node, {"memory_mb": 64}))
    )


async def placements(driver: InterpreterDriver) -> dict[str, str]:
    found = [chunk async for chunk in trajectories.read_placements(driver.journal.redis)]
    return {name: place.node for chunk in found for name, place in chunk.items()}


async def test_an_environment_that_was_not_created_may_begin_again_in_the_same_flush(driver: InterpreterDriver) -> None:
    await driver.journal.entry("a1")
    driver.put(begins("a1", "n"), Forget("t1", "unmade", "no memory"), begins("a1", "m"))
    async with running(driver):
        await driver.all_written()

    assert await placements(driver) == {"t1": "m"}
    assert await driver.sent() == [b"n", b"m"]


async def test_an_environment_that_begins_and_ends_in_one_flush_is_removed(driver: InterpreterDriver) -> None:
    await driver.journal.entry("a1")
    driver.put(begins("a1", "n"), Forget("t1", "lost", "it died"))
    async with running(driver):
        await driver.all_written()

    assert await placements(driver) == {}


async def test_the_end_of_a_trajectory_is_stored(driver: InterpreterDriver) -> None:
    await trajectories.open_trajectory(
        driver.journal.redis, "t1", EnvironmentSpec(), idempotency_key="", digest=b"", most=1, keep_s=60.0,
        node_class="default", fields={},
    )  # fmt: skip
    driver.put(Forget("t1", "expired", "its time is over"))
    async with running(driver):
        await driver.all_written()

    fields = await driver.journal.fields("trajectory:t1")
    assert (fields["state"], fields["reason"]) == (b"expired", b"its time is over")


class CrashingInterpreter(Interpreter):
    """An interpreter whose process ends before any answer is written."""

    async def _finish(self, answers: list[Answering]) -> list[bool]:
        raise RuntimeError(f"{len(answers)} answers are not written")


async def test_the_end_of_a_trajectory_is_not_stored_before_its_verdict(journal: Journal) -> None:
    """A successor that reads the end would answer `environment-lost` without looking for the verdict."""
    await trajectories.open_trajectory(
        journal.redis, "t1", EnvironmentSpec(), idempotency_key="", digest=b"", most=1, keep_s=60.0,
        node_class="default", fields={},
    )  # fmt: skip
    entry = await journal.entry("a1")
    dying = CrashingInterpreter(journal.redis, journal.epoch, lambda _, __: None, keep_batch_s=600.0)
    for write in (Forget("t1", "expired", "its time is over"), answer("a1", entry)):
        dying.put(write)
    with pytest.raises(RuntimeError, match="1 answers"):
        await dying._flush()

    assert (await journal.fields("trajectory:t1"))["state"] == b"open"
    assert await journal.unanswered() == ["a1"]


# ---- turns ---------------------------------------------------------------------------------------------------------


async def test_another_tenants_write_leaves_after_one_of_many(driver: InterpreterDriver) -> None:
    for number in range(1000):
        driver.interpreter.put(Granting("grants.n.1", b"ada %d" % number), "ada", (f"a{number}",))
    driver.interpreter.put(Granting("grants.n.1", b"bob"), "bob", ("b",))
    async with running(driver):
        await driver.all_written()

    sent = await driver.sent()
    assert sent.index(b"bob") == 1
    assert [one for one in sent if one != b"bob"] == [b"ada %d" % number for number in range(1000)]


async def test_flushes_are_small_while_tenants_share_them(
    driver: InterpreterDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []

    async def count(batch: list[Write]) -> None:
        flushed.append(len(batch))

    monkeypatch.setattr(driver.interpreter, "_write", count)
    for number in range(600):
        driver.interpreter.put(Granting("grants.n.1", b"%d" % number), "ada")
    async with running(driver):
        while sum(flushed) < 600:  # noqa: ASYNC110  # no other sign of progress
            await asyncio.sleep(0)
        assert flushed == [MOST_AT_ONCE, MOST_AT_ONCE, 600 - 2 * MOST_AT_ONCE]
        for number in range(200):
            driver.interpreter.put(Granting("grants.n.1", b"%d" % number), "ada" if number % 2 else "bob")
        while sum(flushed) < 800:  # noqa: ASYNC110  # no other sign of progress
            await asyncio.sleep(0)

    assert max(flushed[3:]) == MOST_SHARED


async def test_a_write_of_no_tenant_follows_the_writes_that_share_its_name(driver: InterpreterDriver) -> None:
    def grant(text: bytes, tenant: str, *names: str) -> None:
        driver.interpreter.put(Granting("grants.n.1", text), tenant, names)

    for number in range(300):
        grant(b"ada %d" % number, "ada", f"a{number}")
        grant(b"bob %d" % number, "bob", f"b{number}", "t")
    grant(b"revoked a299", "", "a299")
    grant(b"closed t", "", "t")
    driver.interpreter.put_after_all(Granting("grants.n.1", b"inventory"))
    grant(b"cyd", "cyd")
    async with running(driver):
        await driver.all_written()

    sent = await driver.sent()
    assert sent.index(b"ada 299") < sent.index(b"revoked a299")
    assert sent.index(b"bob 299") < sent.index(b"closed t")
    assert sent.index(b"inventory") == 602, "after all that were put before it"
    assert sent.index(b"cyd") == 603


async def test_a_failed_trace_costs_its_spans_and_no_answer(driver: InterpreterDriver, journal: Journal) -> None:
    await opened(journal)
    await command(journal.redis, "SET", "trace:t1", "no hash")
    before = untraced()
    entries = [await journal.entry(name) for name in ("a1", "a2")]
    traced = answer("a1", entries[0])._replace(tenant="ada", traced_by="t1", span=b"span")
    driver.put(traced, answer("a2", entries[1]))
    async with running(driver):
        await driver.all_written()
    assert driver.reported == [("a1", True), ("a2", True)]
    assert untraced() == before + 1


def untraced() -> float:
    (counted,) = UNTRACED.collect()
    return counted.samples[0].value


async def test_a_flush_is_late_while_the_store_stalls(driver: InterpreterDriver) -> None:
    async def is_late() -> bool:
        return driver.interpreter.flushing.is_late

    async with running(driver):
        await driver.all_written()
        assert not await is_late()
        stalls: list[float] = []
        driver.interpreter.flushing.ended_late = stalls.append
        await command(driver.journal.redis, "CLIENT", "PAUSE", "600", "WRITE")
        driver.put(*to_node(b"1"))
        await soon(is_late)
        await driver.all_written()
        assert not await is_late()
        assert [0.2 < stall < 20.0 for stall in stalls] == [True], "0.6 s less the time that no flush is late"
