"""Waiting work, the stuck part of it, and reasons."""

from __future__ import annotations

import pytest

from shared.policy.dispatch import backlog
from shared.policy.dispatch.backlog import Backlog, PoolBacklog, StuckWork, lacking, survey
from shared.policy.dispatch.dispatcher import Dispatcher
from tests.shared.policy.dispatch.leading import leading, meet, submit
from tests.shared.policy.strategies import CORES, SPECS, request, work

WIDE = work(units={"cores": 999})
ALIEN = work("gpus@cpu", {"gpus": 1})


def test_nothing_waits_in_an_idle_mesh() -> None:
    dispatcher = leading("n")
    submit(dispatcher, request("r"))
    assert survey(dispatcher.cluster) == Backlog()


def test_work_that_waits_for_its_turn_is_not_stuck() -> None:
    dispatcher = leading("n", cores=1)
    submit(dispatcher, *(request(f"r{n}", seq=n, batch="b") for n in range(3)))
    assert survey(dispatcher.cluster) == Backlog([PoolBacklog(CORES, 2)])


def test_work_that_no_node_could_ever_take_is_stuck_at_once_even_behind_a_queue() -> None:
    dispatcher = leading("n", cores=1)
    submit(dispatcher, *(request(f"r{n}", seq=n) for n in range(200)))
    submit(
        dispatcher, request("s", WIDE, batch="b", seq=200), request("t", WIDE, seq=201), request("u", ALIEN, seq=202)
    )
    found = survey(dispatcher.cluster)
    assert found.pools == [
        PoolBacklog(CORES, 201, [StuckWork("run", {"cores": 999}, 2)]),
        PoolBacklog("gpus@cpu", 1, [StuckWork("run", {"gpus": 1}, 1)]),
    ]
    assert found.stuck == {"b": 1}
    dispatcher.check()


def test_everything_in_a_pool_without_nodes_is_stuck_until_one_comes() -> None:
    dispatcher = Dispatcher(specs=SPECS)
    submit(dispatcher, request("r", batch="b"), request("s", work(kind="judge"), seq=1, batch="b"))
    found = survey(dispatcher.cluster)
    assert (found.pools[0].stuck, found.stuck) == (2, {"b": 2})
    meet(dispatcher, "n")
    assert survey(dispatcher.cluster) == Backlog(
        [PoolBacklog(CORES, 1, [StuckWork("judge", {"cores": 1}, 1)])], {"b": 1}
    )


def test_what_is_lacking_is_named() -> None:
    assert lacking("noop", {}, "slots@default") == "no node of class 'default' offers noop"


def test_the_backlog_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = Dispatcher(specs=SPECS)
    units = [{"cores": 1 + n % 5} for n in range(9)]
    submit(dispatcher, *(request(f"r{n}", work(units=one), seq=n, batch=f"b{n}") for n, one in enumerate(units)))
    submit(dispatcher, request("other", ALIEN, seq=9))
    monkeypatch.setattr(backlog, "MOST_REPORTED", 1)
    found = survey(dispatcher.cluster)
    assert (len(found.pools), len(found.pools[0].lacks), len(found.stuck)) == (1, 1, 1)
    assert found.pools[0].waiting == 9
