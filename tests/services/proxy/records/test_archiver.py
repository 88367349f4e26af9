"""The archiver against real stores: whatever breaks between its steps, each answer is read once, in order."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Broken
from sqlalchemy import func, select

from services.proxy.records import archiver as archiving
from services.proxy.records.archiver import Archiver
from services.proxy.records.memory import ValkeyMemory
from services.proxy.records.store import Store, Stored
from services.proxy.settings import ProxySettings
from shared.bus import archive, batches
from shared.bus.archive import BatchKey
from shared.bus.connection import ValkeyClock, command
from shared.bus.functions import Answering, journal_actions
from shared.bus.memory import StoreMemory
from shared.runtime.errors import Unavailable
from shared.store.answers import Answers
from shared.store.batches import BatchHistory
from shared.store.database import Sessions, connect, transaction
from shared.store.records import EndedBatch, KeptAnswer
from shared.store.results import ArchiveReader
from shared.store.tables import ANSWERS
from tests.services.proxy.stores import store_over
from tests.shared.bus.flaky import Flaky
from tests.shared.bus.journal import Journal, submission

SETTINGS = ProxySettings.model_validate({"archive_after_s": 0})
KEPT_S = 600
KEY = BatchKey("ada", "b")


@pytest.fixture
async def sessions(database_url: str) -> AsyncIterator[Sessions]:
    async with connect(database_url, name="test") as sessions:
        yield sessions


@pytest.fixture
async def driver(journal: Journal, sessions: Sessions) -> ArchiverDriver:
    return ArchiverDriver(journal, sessions, await ValkeyClock.measure(journal.redis))


class ArchiverDriver:
    """A leader's store, an archiver, and a reader of both stores."""

    def __init__(self, journal: Journal, sessions: Sessions, clock: ValkeyClock) -> None:
        self.journal = journal
        self.redis = journal.redis
        self.sessions = sessions
        self.clock = clock
        self.store = Store(journal.redis, ArchiveReader(sessions))
        self.archiver = self.another()

    def another(self, redis: Redis | None = None, settings: ProxySettings = SETTINGS) -> Interrupted:
        redis = redis or self.redis
        return Interrupted(redis, self.sessions, self.clock, ValkeyMemory(redis), settings)

    async def answer(self, *actions: str, batch: str = "", keep_s: int = KEPT_S, output: str = "") -> None:
        """Submit and answer them."""
        receipts = await self.journal.submit(*actions, batch=batch)
        answers = [
            Answering(action, receipt.entry, batch, answer_of(action, output), keep_s, "ada")
            for action, receipt in zip(actions, receipts, strict=True)
        ]
        assert all(await self.journal.finish_all(*answers))

    async def read(self, batch: str = "b") -> list[str]:
        """Ids of all results, as a reader with small pages gets them."""
        rows = [row async for page in self.store.results.pages(batch, count=3) for row in page]
        assert [row.cursor for row in rows] == sorted({row.cursor for row in rows}, key=archive.numeric)
        return [msgspec.json.decode(row.answer)["id"] for row in rows]

    async def archive(self) -> None:
        while await self.archiver.archive_due():
            pass

    async def rows(self) -> int:
        async with self.sessions() as session:
            return int((await session.execute(select(func.count()).select_from(ANSWERS))).scalar_one())

    async def expire(self, batch: str = "b") -> None:
        """Delete the batch as Valkey does after its TTL."""
        await command(self.redis, "DEL", f"batch:{batch}", f"results:{batch}", f"archived:{batch}")

    async def make_history(self, batch: str = "b") -> None:
        async with transaction(self.sessions) as session:
            await BatchHistory(session).ended(EndedBatch(batch, "ada", "t", "complete", 0.0, 0.0, 1.0, 1))

    async def kept(self) -> int:
        return (await archive.kept(self.redis)).get("ada", 0)


class Interrupted(Archiver):
    """Archiver with a callback between copy and deletion."""

    between: Callable[[], Awaitable[Any]] | None = None

    async def _keep(self, rows: list[KeptAnswer]) -> None:
        await super()._keep(rows)
        if self.between is not None:
            between, self.between = self.between, None
            await between()


def answer_of(action: str, output: str = "") -> bytes:
    return msgspec.json.encode({"id": action, "output": output})


def names(count: int, start: int = 0) -> list[str]:
    return [f"a{number}" for number in range(start, start + count)]


async def test_results_move_and_are_read_in_order(driver: ArchiverDriver) -> None:
    await driver.journal.open()
    await driver.answer(*names(10), batch="b")
    await driver.archive()
    await driver.answer(*names(5, start=10), batch="b")

    assert await command(driver.redis, "XLEN", "results:b") == 5
    assert await driver.rows() == 10
    assert await driver.read() == names(15)


async def test_archived_answers_are_counted(driver: ArchiverDriver) -> None:
    name = "treadle_proxy_archived_answers_total"
    before = REGISTRY.get_sample_value(name) or 0.0
    await driver.journal.open()
    await driver.answer(*names(3), batch="b")
    await driver.answer("alone")
    await driver.archive()
    assert REGISTRY.get_sample_value(name) == before + 4
    await driver.archive()
    assert REGISTRY.get_sample_value(name) == before + 4


async def test_young_answers_stay_until_they_are_old_or_memory_fills(driver: ArchiverDriver) -> None:
    await driver.journal.open()
    await driver.answer("a1", batch="b")
    await driver.answer("a2")
    old = driver.another(settings=ProxySettings.model_validate({"archive_after_s": 3600}))
    assert await old.archive_due() == 0

    old = driver.another(settings=ProxySettings.model_validate({"archive_after_s": 3600, "archive_fill": 1e-9}))
    _, bound = await command(driver.redis, "CONFIG", "GET", "maxmemory")
    await command(driver.redis, "CONFIG", "SET", "maxmemory", "1gb")
    try:
        assert await old.archive_due() == 2
    finally:
        await command(driver.redis, "CONFIG", "SET", "maxmemory", bound)


async def test_a_crash_between_copy_and_deletion_shows_each_result_once(driver: ArchiverDriver) -> None:
    await driver.journal.open()
    await driver.answer(*names(7), batch="b")
    await driver.answer("alone")
    flaky = Flaky(driver.redis)
    dying = driver.another(flaky)

    async def cut() -> None:
        flaky.failures = ["before"]

    for _ in range(2):  # first the answer outside batches, then the results
        dying.between = cut
        with pytest.raises(Broken):
            await dying.archive_due()
        assert await driver.read() == names(7)
        assert (await found(driver, "alone")).answer == answer_of("alone")
        await driver.archiver._archive_actions(1 << 50)
    assert await driver.rows() == 8

    await driver.archive()
    assert await driver.read() == names(7)
    assert await command(driver.redis, "XLEN", "results:b") == 0
    assert await driver.rows() == 8


async def found(driver: ArchiverDriver, action: str) -> Stored:
    stored = await driver.store.action(action)
    assert stored is not None, action
    return stored


async def test_a_reply_that_is_lost_changes_nothing(driver: ArchiverDriver) -> None:
    await driver.journal.open()
    await driver.answer(*names(3), batch="b")
    flaky = Flaky(driver.redis)
    dying = driver.another(flaky)

    async def cut() -> None:
        flaky.failures = ["after"]

    dying.between = cut
    with pytest.raises(Broken):
        await dying.archive_due()
    before = await archive.kept(driver.redis)

    await archive.archive_results(driver.redis, KEY, [(name, 9) for name in names(3)], "9-9")
    assert await archive.kept(driver.redis) == before
    assert await driver.read() == names(3)


async def test_two_archivers_at_once_move_each_answer_once(driver: ArchiverDriver) -> None:
    await driver.journal.open()
    await driver.answer(*names(6), batch="b")
    slow = driver.another()

    async def overtaken() -> None:
        await driver.answer(*names(6, start=6), batch="b")
        await driver.archive()

    slow.between = overtaken
    await slow.archive_due()

    assert await driver.rows() == 12
    assert await driver.read() == names(12)
    assert await driver.kept() == 12 * 54


@pytest.mark.parametrize("seed", range(8))
async def test_a_reader_beside_the_archiver_sees_each_result_once_in_order(
    driver: ArchiverDriver, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(archiving, "AT_ONCE", 4)
    await driver.journal.open()
    total, seen, cursor = 0, list[str](), ""
    while len(seen) < 60:
        match rng.choice(["answer", "archive", "read", "read"]):
            case "answer" if total < 60:
                count = min(60 - total, rng.randint(1, 9))
                await driver.answer(*names(count, start=total), batch="b")
                total += count
            case "archive":
                await driver.archiver.archive_due()
            case "read":
                page = await driver.store.results.page("b", cursor, rng.randint(1, 7))
                seen += [msgspec.json.decode(row.answer)["id"] for row in page]
                cursor = page[-1].cursor if page else cursor
    assert seen == names(60)


async def test_a_page_read_while_its_rows_move_has_no_gap(driver: ArchiverDriver) -> None:
    """The rows move between the reads of stream and mark: the page has all rows of Postgres."""
    await driver.journal.open()
    await driver.answer(*names(4), batch="b")

    class Moving(Flaky):
        async def execute_command(self, *args: Any, **options: Any) -> Any:
            reply = await super().execute_command(*args, **options)
            if args[0] == "XRANGE":
                await driver.archive()
            return reply

    page = await Store(Moving(driver.redis), ArchiveReader(driver.sessions)).results.page("b", "", 10)
    assert [msgspec.json.decode(row.answer)["id"] for row in page] == names(4)


async def test_an_archived_request_is_repeated_or_in_conflict_and_never_runs_again(driver: ArchiverDriver) -> None:
    await driver.journal.open()
    await driver.answer("a1", batch="b")
    await driver.answer("a2")
    await driver.archive()

    for action, batch in (("a1", "b"), ("a2", "")):
        assert [one.code for one in await driver.journal.submit(action, batch=batch)] == ["repeated"]
        assert [one.code for one in await driver.journal.submit(action, batch=batch, room=0)] == ["repeated"]
        assert [one.code for one in await driver.journal.submit(action, batch=batch, body=b"other")] == ["conflict"]
        assert (await found(driver, action)).answer == answer_of(action)
    assert await driver.store.answers(["a1", "a2", "a3"]) == {name: answer_of(name) for name in ("a1", "a2")}
    assert await driver.journal.unanswered() == []


async def test_an_action_that_ran_again_after_its_answer_expired_has_its_newer_answer(driver: ArchiverDriver) -> None:
    await driver.answer("a1", output="first")
    await driver.archive()
    await command(driver.redis, "DEL", "action:a1")  # expired; the row still exists
    await driver.answer("a1", output="second")

    assert (await found(driver, "a1")).answer == answer_of("a1", "second")
    await driver.archive()
    assert (await found(driver, "a1")).answer == answer_of("a1", "second")
    assert await driver.rows() == 1


async def test_a_late_archiver_does_not_free_the_answer_of_a_second_run(driver: ArchiverDriver) -> None:
    await driver.answer("a1", output="first")
    slow = driver.another()

    async def again() -> None:
        await command(driver.redis, "DEL", "action:a1")
        await driver.answer("a1", output="second")

    slow.between = again
    await slow.archive_due()
    assert (await found(driver, "a1")).answer == answer_of("a1", "second")


async def test_a_batch_that_expires_while_it_moves_leaves_nothing(driver: ArchiverDriver) -> None:
    await driver.journal.open()
    await driver.answer(*names(5), batch="b")
    slow = driver.another()
    slow.between = driver.expire
    await slow.archive_due()
    await driver.make_history()
    assert await driver.rows() == 5
    assert await driver.store.action("a1") is None  # its batch is deleted, even if parts of it remain

    await driver.archiver.sweep()

    assert await driver.rows() == 0
    assert await command(driver.redis, "EXISTS", "archived:b", "archived", "unarchived", "kept:batches") == 0
    assert await driver.kept() == 0


async def test_nothing_is_deleted_before_the_planner_has_its_history(driver: ArchiverDriver) -> None:
    await driver.journal.open()
    await driver.answer(*names(5), batch="b")
    await driver.archive()
    await driver.expire()

    await driver.archiver.sweep()
    assert await driver.rows() == 5
    assert await driver.read() == names(5)  # as the planner does

    await driver.make_history()
    await driver.archiver.sweep()
    assert await driver.rows() == 0


async def test_results_of_a_deleted_batch_are_freed_without_a_copy(
    driver: ArchiverDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "AT_ONCE", 4)
    await driver.journal.open()
    await driver.answer(*names(10), batch="b")
    await batches.end_batch(driver.redis, "b", "cancelled", keep_batch_s=0)
    assert await command(driver.redis, "EXISTS", "batch:b") == 0
    assert await driver.store.action("a3") is None

    await driver.archiver.sweep()
    assert await command(driver.redis, "XLEN", "results:b") == 10, "the planner has not read them"

    await driver.make_history()
    await driver.archiver.sweep()
    left = [
        key for key in await command(driver.redis, "KEYS", "*") if key.startswith((b"action:", b"results:", b"kept:"))
    ]
    assert (left, await driver.rows(), await driver.kept()) == ([], 0, 0)
    assert await command(driver.redis, "EXISTS", "unarchived", "archived") == 0


async def test_a_batch_that_is_deleted_before_its_last_answer_goes_with_it(driver: ArchiverDriver) -> None:
    await driver.journal.open()
    entry = await driver.journal.entry("a0", "b")
    assert await batches.end_batch(driver.redis, "b", "cancelled", keep_batch_s=0) == "cancelled"
    assert await command(driver.redis, "EXISTS", "batch:b") == 1

    await driver.journal.finish("a0", entry, "b", answer_of("a0"))
    assert await command(driver.redis, "EXISTS", "batch:b") == 0
    assert [one.state for one in await driver.journal.ended()] == ["cancelled"]


async def test_an_expired_batch_is_deleted_in_pieces(driver: ArchiverDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "DELETED_AT_ONCE", 2)
    for batch in ("b", "c"):
        await driver.journal.open(batch)
        await driver.answer(*(f"{batch}{number}" for number in range(5)), batch=batch)
    await driver.archive()
    await driver.expire()
    await driver.make_history()

    await driver.archiver.sweep()

    assert await driver.read("c") == [f"c{number}" for number in range(5)]
    assert await driver.rows() == 5


async def test_rows_too_old_for_any_batch_are_deleted_and_others_are_not(driver: ArchiverDriver) -> None:
    now = driver.clock.unix()
    async with transaction(driver.sessions) as session:
        await Answers(session).add(
            [
                KeptAnswer(name, "", "ada", (1, number), b"{}", now + left_s)
                for number, (name, left_s) in enumerate({"old": -1.0, "young": 60.0}.items())
            ]
        )
        assert set(await Answers(session).find(["old", "young"])) == {"young"}

    await driver.archiver.delete_by_age()
    assert await driver.rows() == 1


async def test_accounts_end_at_nothing_when_everything_has_expired(driver: ArchiverDriver) -> None:
    await driver.journal.open()
    await driver.answer(*names(4), batch="b")
    await driver.answer("a9", keep_s=61)
    await driver.answer("briefly kept", keep_s=60)  # expires by itself, and does not count
    answers = sum(len(answer_of(name)) + 250 for name in [*names(4), "a9"])
    assert await archive.kept(driver.redis) == {"ada": answers}

    await driver.archive()
    assert await driver.kept() == 4 * 54 + 170
    await driver.expire()
    await driver.archiver.sweep()
    await driver.make_history()
    await driver.archiver.sweep()
    for minute in await command(driver.redis, "ZRANGE", "expiring", 0, -1):  # like an expired minute
        await command(driver.redis, "ZADD", "expiring", 1, minute)
    await driver.archiver.sweep()

    assert await driver.kept() == 0


async def test_an_answer_that_expires_before_it_moves_leaves_the_account(driver: ArchiverDriver) -> None:
    await driver.journal.open()
    await driver.answer("a1", batch="b")
    await driver.answer("a2")
    await driver.expire()
    await command(driver.redis, "DEL", "action:a2")

    await driver.archive()
    await driver.archiver.sweep()

    assert await driver.kept() == 0
    assert await driver.rows() == 0


async def test_answers_outside_batches_are_read_in_pages_of_bounded_size(driver: ArchiverDriver) -> None:
    await driver.answer(*names(6), output="x" * 1000)
    now_ms = round(driver.clock.unix() * 1000) + 1000
    page = [one.action for one in await archive.due_actions(driver.redis, now_ms, 1000, 3000)]
    assert page == ["a0", "a1"]
    assert [one.action for one in await archive.due_actions(driver.redis, now_ms, 1000, 1)] == ["a0"]

    await driver.archive()

    assert (await driver.rows(), await archive.due_actions(driver.redis, now_ms, 1000, 3000)) == (6, [])


async def test_a_small_valkey_is_read_in_small_pages(driver: ArchiverDriver) -> None:
    memory = ValkeyMemory(driver.redis)
    archiver = Archiver(driver.redis, driver.sessions, driver.clock, memory, SETTINGS)
    memory.now = StoreMemory(0, 16 << 20)
    assert archiver._most_bytes == 1 << 20
    memory.now = StoreMemory(0, 0)
    assert archiver._most_bytes == archiving.MOST_BYTES


async def test_a_tenant_that_keeps_too_much_is_refused_and_another_is_not(driver: ArchiverDriver) -> None:
    await driver.answer(*names(3))
    most = await driver.kept()

    async def code(tenant: str, action: str, most_kept: int) -> str:
        item = submission(action)._replace(tenant=tenant)
        return (await journal_actions(driver.redis, [item], max_journal=100, most_kept=most_kept))[0].code

    assert await code("ada", "x1", most + 1) == "accepted"
    assert await code("ada", "x2", most) == "tenant-full"
    assert await code("bob", "x3", most) == "accepted"
    assert await code("ada", "a1", most) == "repeated"
    await driver.archive()
    assert await code("ada", "x2", most) == "accepted"


async def test_while_postgres_is_away_what_valkey_has_is_read_and_the_rest_is_unavailable(
    driver: ArchiverDriver,
) -> None:
    await driver.journal.open()
    await driver.answer("old", batch="b")
    await driver.archive()
    await driver.answer("young", batch="b")
    blind = store_over(driver.redis)

    assert (await blind.action("young")) == Stored("finished", "b", answer_of("young"))
    last = (await command(driver.redis, "HGET", "batch:b", "archived")).decode()
    assert [msgspec.json.decode(row.answer)["id"] for row in await blind.results.page("b", last, 9)] == ["young"]
    assert await blind.answers(["old", "young"]) == {"young": answer_of("young")}
    for reading in (blind.action("old"), blind.action("never"), blind.results.page("b", "", 9)):
        with pytest.raises(Unavailable):
            await reading


async def test_without_archived_answers_postgres_is_not_read(valkey: Redis) -> None:
    assert await store_over(valkey).action("never") is None


def test_a_tenants_part_leaves_some_for_the_next() -> None:
    memory = ValkeyMemory(Redis())
    assert memory.most_kept == 0
    memory.now = StoreMemory(0, 900)
    kept = [0, 0]
    for tenant in (0, 1):  # the second after the first has reached its limit
        while kept[tenant] < memory.most_kept:
            kept[tenant] += 1
            memory.now = StoreMemory(memory.now.used_bytes + 1, 900)
    assert kept[0] == 600
    assert kept[1] == 200
    memory.now = StoreMemory(900, 900)
    assert memory.most_kept == 1
