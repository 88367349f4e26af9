"""Trajectories in Valkey: opened once, closed once, and accepting actions only while open."""

from __future__ import annotations

from typing import Any

import pytest

from shared.bus import functions, trajectories
from shared.bus.connection import command
from shared.bus.functions import Deposed, Granting, Receipt, Submission
from shared.bus.trajectories import StoredPlacement, TrajectoryOpeningResult, TrajectoryStatus, pack
from shared.messages.actions import ACTIONS, CloseRequested
from shared.messages.environments import TRAJECTORIES, EnvironmentsExpected, EnvironmentSpec
from tests.shared.bus.journal import Journal, lead, resign, submission

KEEP_S = 600.0
LOCAL = EnvironmentSpec(lifetime_s=1000.0)


async def opened(
    journal: Journal, trajectory: str = "t1", spec: EnvironmentSpec = LOCAL, *, key: str = "", body: bytes = b"body",
    most: int = 10,
) -> TrajectoryOpeningResult:  # fmt: skip
    return await trajectories.open_trajectory(
        journal.redis, trajectory, spec, idempotency_key=key, digest=body, most=most, keep_s=KEEP_S,
        node_class="default", fields={"tenant": "ada"},
    )  # fmt: skip


async def submit(journal: Journal, action: str, trajectory: str = "t1") -> Receipt:
    item = submission(action)._replace(trajectory=trajectory)
    (receipt,) = await functions.journal_actions(journal.redis, [item], max_journal=1000)
    return receipt


async def begun(journal: Journal, action: str = "a1", trajectory: str = "t1", node: str = "n") -> StoredPlacement:
    """The grant of an accepted action begins the environment."""
    placement = StoredPlacement(node, {"memory_mb": 64})
    grant = Granting("grants.n.1", b"m", action, f"1:{node}", trajectory, pack(placement))
    await functions.send_grants(journal.redis, journal.epoch, [grant])
    return placement


async def closings(journal: Journal) -> list[str]:
    return [one.trajectory for one in await journal.messages(ACTIONS) if isinstance(one, CloseRequested)]


async def state(journal: Journal, trajectory: str = "t1") -> tuple[bytes | None, bytes | None]:
    fields = await journal.fields(f"trajectory:{trajectory}")
    return fields.get("state"), fields.get("reason")


async def listed(journal: Journal) -> dict[str, list[str]]:
    names = ("open", "due", "ended")
    rows = [await command(journal.redis, "ZRANGE", f"trajectories:{name}", 0, -1) for name in names]
    return {name: [one.decode() for one in row] for name, row in zip(names, rows, strict=True)}


async def placed(journal: Journal) -> dict[str, StoredPlacement]:
    return {name: one async for chunk in trajectories.read_placements(journal.redis) for name, one in chunk.items()}


async def overdue(journal: Journal, trajectory: str = "t1", *, idle_ms: int = 2_000_000) -> None:
    """Its idle time is over, without an action."""
    await command(journal.redis, "ZADD", "trajectories:due", 1, trajectory)
    seconds, _ = await command(journal.redis, "TIME")
    await command(journal.redis, "HSET", f"trajectory:{trajectory}", "active_ms", int(seconds) * 1000 - idle_ms)


async def now_ms(journal: Journal) -> int:
    seconds, micros = await command(journal.redis, "TIME")
    return int(seconds) * 1000 + int(micros) // 1000


# ---- opening -------------------------------------------------------------------------------------------------------


async def test_an_opened_trajectory_is_recorded_for_its_life_and_a_while_longer(journal: Journal) -> None:
    assert await opened(journal) == TrajectoryOpeningResult("opened", "t1")

    fields = await journal.fields("trajectory:t1")
    assert (fields["state"], fields["reason"], fields["tenant"]) == (b"open", b"", b"ada")
    assert 1500 < await journal.ttl_s("trajectory:t1") <= 1600
    assert await listed(journal) == {"open": ["t1"], "due": ["t1"], "ended": []}


async def test_opening_again_with_the_same_key_finds_the_first(journal: Journal) -> None:
    await opened(journal, key="k")

    assert await opened(journal, "t2", key="k") == TrajectoryOpeningResult("repeated", "t1")
    assert await opened(journal, "t2", key="k", body=b"other") == TrajectoryOpeningResult("conflict", "t1")
    assert await state(journal, "t2") == (None, None)


async def test_a_repeated_call_returns_the_first_result_and_changes_nothing(journal: Journal) -> None:
    await opened(journal, key="k")
    before = await journal.fields("trajectory:t1")

    assert await opened(journal, key="k") == TrajectoryOpeningResult("opened", "t1")
    assert await journal.fields("trajectory:t1") == before


async def test_the_key_of_an_expired_trajectory_opens_another(journal: Journal) -> None:
    await opened(journal, key="k")
    await command(journal.redis, "DEL", "trajectory:t1")

    assert await opened(journal, "t2", key="k") == TrajectoryOpeningResult("opened", "t2")


async def test_no_more_than_so_many_are_open_at_once(journal: Journal) -> None:
    await opened(journal, most=1)

    assert await opened(journal, "t2", most=1) == TrajectoryOpeningResult("full", "")
    await trajectories.close_trajectory(journal.redis, "t1", "done")
    assert (await opened(journal, "t2", most=1)).code == "opened"


async def test_an_image_that_has_to_be_had_is_hinted_at(journal: Journal) -> None:
    await opened(journal, "t1")
    await opened(journal, "t2", EnvironmentSpec(image="a:1"))
    await trajectories.expect(journal.redis, ["b:2", "c:3"])

    assert await journal.messages(TRAJECTORIES) == [
        EnvironmentsExpected(images=["a:1"], node_class="default"),
        EnvironmentsExpected(images=["b:2", "c:3"]),
    ]


# ---- acting --------------------------------------------------------------------------------------------------------


async def test_an_action_of_an_open_trajectory_is_taken_and_known_as_its(journal: Journal) -> None:
    await opened(journal)

    assert (await submit(journal, "a1")).code == "accepted"
    assert (await journal.fields("action:a1"))["trajectory"] == b"t1"
    assert await journal.unanswered() == ["a1"]


async def test_an_action_of_an_unknown_trajectory_is_not(journal: Journal) -> None:
    assert await submit(journal, "a1") == Receipt("no-trajectory", "")
    assert await journal.unanswered() == []


async def test_an_ended_trajectory_rejects_actions_with_its_reason(journal: Journal) -> None:
    await opened(journal)
    await trajectories.close_trajectory(journal.redis, "t1", "its trainer has closed it")

    assert await submit(journal, "a1") == Receipt("trajectory-ended", "closed its trainer has closed it")
    assert await journal.fields("action:a1") == {}


async def test_a_repeat_is_a_repeat_also_after_the_end(journal: Journal) -> None:
    await opened(journal)
    first = await submit(journal, "a1")
    await trajectories.close_trajectory(journal.redis, "t1", "done")

    assert await submit(journal, "a1") == Receipt("repeated", first.entry)


async def test_an_action_with_an_expired_answer_is_not_executed_again(journal: Journal) -> None:
    await opened(journal)
    first = await submit(journal, "a1")
    await journal.finish("a1", first.entry, trajectory="t1")
    assert await submit(journal, "a1") == Receipt("repeated", first.entry)

    await command(journal.redis, "DEL", "action:a1")  # its time is over

    assert await submit(journal, "a1") == Receipt("answer-gone", "")
    assert (await submit(journal, "a2")).code == "accepted"
    assert 0 < await journal.ttl_s("acted:t1") <= await journal.ttl_s("trajectory:t1")


async def test_actions_of_an_ended_trajectory_are_not_kept(journal: Journal) -> None:
    await opened(journal)
    first = await submit(journal, "a1")
    await journal.finish("a1", first.entry, trajectory="t1")
    await trajectories.close_trajectory(journal.redis, "t1", "done")

    assert await command(journal.redis, "EXISTS", "acted:t1") == 0


# ---- placing -------------------------------------------------------------------------------------------------------


async def test_the_first_grant_of_an_environment_stores_its_placement(journal: Journal) -> None:
    await opened(journal)
    await submit(journal, "a1")
    await command(journal.redis, "EXPIRE", "trajectory:t1", 5)

    placement = await begun(journal)

    assert await placed(journal) == {"t1": placement}
    assert (await journal.fields("trajectory:t1"))["node"] == b"n"
    assert await journal.ttl_s("trajectory:t1") > 1500, "its idle time counts from here"


async def test_the_node_has_a_grace_period_to_report_the_end_of_a_lifetime(journal: Journal) -> None:
    """The node ends the environment at the end of its lifetime. The mesh does so 60 s later."""
    await opened(journal)
    await submit(journal, "a1")
    before_ms = await now_ms(journal)

    await begun(journal)

    due_ms = float(await command(journal.redis, "ZSCORE", "trajectories:due", "t1"))
    assert before_ms <= due_ms - (LOCAL.lifetime_s + 60) * 1000 <= await now_ms(journal)


async def test_a_late_grant_does_not_reopen_an_ended_trajectory(journal: Journal) -> None:
    """Its placement is kept until its node has reported the end."""
    await opened(journal)
    await submit(journal, "a1")
    await trajectories.close_trajectory(journal.redis, "t1", "done")

    placement = await begun(journal)

    assert await placed(journal) == {"t1": placement}
    assert (await journal.fields("trajectory:t1"))["node"] == b"n"
    assert await state(journal) == (b"closed", b"done")
    assert await journal.ttl_s("trajectory:t1") <= KEEP_S
    assert await listed(journal) == {"open": [], "due": [], "ended": ["t1"]}


async def test_a_late_grant_does_not_create_an_expired_record(journal: Journal) -> None:
    await opened(journal)
    await submit(journal, "a1")
    await command(journal.redis, "DEL", "trajectory:t1")

    placement = await begun(journal)

    assert await placed(journal) == {"t1": placement}
    assert await journal.fields("trajectory:t1") == {}


async def test_a_grant_that_is_sent_again_places_it_where_it_was(journal: Journal) -> None:
    await opened(journal)
    await submit(journal, "a1")

    assert await begun(journal) == await begun(journal)
    assert list(await placed(journal)) == ["t1"]


async def test_an_action_that_was_answered_places_nothing(journal: Journal) -> None:
    await opened(journal)

    await begun(journal, "gone")

    assert await placed(journal) == {}


async def test_a_deposed_leader_places_nothing(journal: Journal) -> None:
    await opened(journal)
    await submit(journal, "a1")
    await resign(journal.redis, "me")
    await lead(journal.redis, "another", 30.0)

    with pytest.raises(Deposed):
        await begun(journal)
    assert await placed(journal) == {}


async def test_more_placements_than_a_chunk_are_all_read(journal: Journal) -> None:
    packed = pack(StoredPlacement("n", {"memory_mb": 1}))
    await command(journal.redis, "HSET", "placements", *(part for n in range(2000) for part in (f"t{n}", packed)))

    assert len(await placed(journal)) == 2000


# ---- ending --------------------------------------------------------------------------------------------------------


async def test_closing_is_published_to_the_leader_once_and_is_final(journal: Journal) -> None:
    await opened(journal)

    assert await trajectories.close_trajectory(journal.redis, "t1", "done")
    assert await trajectories.close_trajectory(journal.redis, "t1", "again")

    assert await state(journal) == (b"closed", b"done")
    assert await closings(journal) == ["t1"]
    assert await listed(journal) == {"open": [], "due": [], "ended": ["t1"]}
    assert 0 < await journal.ttl_s("trajectory:t1") <= KEEP_S


async def test_an_unknown_trajectory_cannot_be_closed(journal: Journal) -> None:
    assert not await trajectories.close_trajectory(journal.redis, "t1", "done")
    assert await closings(journal) == []


@pytest.mark.parametrize("ended", ["expired", "lost"])
async def test_an_environment_that_is_no_more_ends_its_trajectory(journal: Journal, ended: str) -> None:
    await opened(journal)
    await submit(journal, "a1")
    await begun(journal)

    for _ in range(2):  # a flush that is made again
        await trajectories.record_ends(journal.redis, journal.epoch, [("t1", ended, "it died")])

    assert await state(journal) == (ended.encode(), b"it died")
    assert await placed(journal) == {}
    assert (await submit(journal, "a2")).entry == f"{ended} it died"
    assert await closings(journal) == [], "the leader has been notified"


async def test_the_first_end_counts(journal: Journal) -> None:
    await opened(journal)
    await trajectories.close_trajectory(journal.redis, "t1", "done")

    await trajectories.record_ends(journal.redis, journal.epoch, [("t1", "lost", "it died")])

    assert await state(journal) == (b"closed", b"done")


async def test_an_environment_that_was_not_made_leaves_its_trajectory_open(journal: Journal) -> None:
    await opened(journal)
    await submit(journal, "a1")
    await begun(journal)

    await trajectories.record_ends(journal.redis, journal.epoch, [("t1", "unmade", "no memory")])

    assert await placed(journal) == {}
    assert await state(journal) == (b"open", b"no memory"), "the reason is kept until it is begun again"
    assert "node" not in await journal.fields("trajectory:t1")
    assert await listed(journal) == {"open": ["t1"], "due": ["t1"], "ended": []}
    await begun(journal)
    assert await state(journal) == (b"open", b"")


async def test_an_end_of_what_has_expired_leaves_no_record(journal: Journal) -> None:
    await trajectories.record_ends(journal.redis, journal.epoch, [("t1", "lost", "it died")])

    assert await journal.fields("trajectory:t1") == {}
    assert await listed(journal) == {"open": [], "due": [], "ended": []}


async def test_a_deposed_leader_ends_nothing(journal: Journal) -> None:
    await opened(journal)
    await overdue(journal)
    for call in (
        trajectories.record_ends(journal.redis, journal.epoch + 1, [("t1", "lost", "it died")]),
        trajectories.expire_trajectories(journal.redis, journal.epoch + 1),
    ):
        with pytest.raises(Deposed):
            await call

    assert await state(journal) == (b"open", b"")


# ---- time ----------------------------------------------------------------------------------------------------------


async def expired(journal: Journal) -> list[str]:
    return await trajectories.expire_trajectories(journal.redis, journal.epoch)


async def test_a_young_trajectory_is_left_alone(journal: Journal) -> None:
    await opened(journal)

    assert await expired(journal) == []


async def test_one_without_actions_for_its_idle_time_ends(journal: Journal) -> None:
    await opened(journal)
    await overdue(journal)

    assert await expired(journal) == ["t1"]
    assert await expired(journal) == []
    assert await state(journal) == (b"expired", b"no action arrived for its whole lifetime")
    assert await closings(journal) == ["t1"]


async def test_one_whose_first_action_still_waits_does_not(journal: Journal) -> None:
    await opened(journal)
    await overdue(journal, idle_ms=1000)

    assert await expired(journal) == []
    assert await state(journal) == (b"open", b"")
    assert await expired(journal) == []
    assert await listed(journal) == {"open": ["t1"], "due": ["t1"], "ended": []}


async def test_one_without_an_environment_report_in_time_ends(journal: Journal) -> None:
    await opened(journal)
    await submit(journal, "a1")
    await begun(journal)
    assert await expired(journal) == []
    await overdue(journal, idle_ms=0)

    assert await expired(journal) == ["t1"]
    assert await state(journal) == (b"expired", b"its lifetime is over")


async def test_one_whose_record_has_expired_is_struck_off(journal: Journal) -> None:
    await opened(journal)
    await overdue(journal)
    await command(journal.redis, "DEL", "trajectory:t1")

    assert await expired(journal) == []
    assert await listed(journal) == {"open": [], "due": [], "ended": []}


async def test_no_more_than_so_many_end_at_once(journal: Journal) -> None:
    for name in ("t1", "t2", "t3"):
        await opened(journal, name)
        await overdue(journal, name)

    assert len(await trajectories.expire_trajectories(journal.redis, journal.epoch, most=2)) == 2
    assert len(await expired(journal)) == 1


async def test_states_of_trajectories_are_read_together(journal: Journal) -> None:
    await opened(journal, "t1")
    await opened(journal, "t2")
    await trajectories.close_trajectory(journal.redis, "t2", "done")

    assert await trajectories.read_statuses(journal.redis, ["t1", "t2", "t3"]) == {
        "t1": TrajectoryStatus("open", ""),
        "t2": TrajectoryStatus("closed", "done"),
        "t3": TrajectoryStatus("", ""),
    }


async def test_actions_of_several_trajectories_are_taken_or_refused_each_for_itself(journal: Journal) -> None:
    await opened(journal, "t1")
    items: list[Submission] = [
        submission("a1")._replace(trajectory="t1"), submission("a2")._replace(trajectory="t2"), submission("a3")
    ]  # fmt: skip
    receipts: list[Any] = await functions.journal_actions(journal.redis, items, max_journal=1000)

    assert [one.code for one in receipts] == ["accepted", "no-trajectory", "accepted"]
