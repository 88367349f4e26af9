"""The measurements of decisions: their names, and work on a cluster that is busy all the time."""

from __future__ import annotations

import pytest

from treadle.lab.bench.busy_cluster import CORES, BusyCluster, Load, MixedLoad, PlainLoad
from treadle.lab.bench.dispatch import BOUNDED, cases
from treadle.lab.bench.sizes import QUICK, Sizes

PLAIN = {
    "dispatch.nodes.10", "dispatch.nodes.100", "dispatch.nodes.1000", "dispatch.nodes.4000",
    "dispatch.waiting.1000", "dispatch.waiting.100000",
    "dispatch.tenants.1", "dispatch.tenants.100", "dispatch.tenants.10000",
}  # fmt: skip


def test_a_full_run_has_these_figures() -> None:
    mixed = {f"dispatch.mixed.{nodes}" for nodes in (10, 100, 1000)}
    assert sorted(case.name for case in cases(Sizes().dispatch)) == sorted(PLAIN | mixed)


def test_a_quick_run_has_every_group_its_smallest_number_and_the_bounded_ones() -> None:
    quick, full = [case.name for case in cases(QUICK.dispatch)], [case.name for case in cases(Sizes().dispatch)]
    firsts = {name.rpartition(".")[0]: name for name in reversed(full)}
    assert {*firsts.values(), *(f"dispatch.{group}.{number}" for group, number in BOUNDED.items())} <= {*quick}


@pytest.mark.parametrize("load", [PlainLoad(tenants=3), MixedLoad(trajectories=4)], ids=["plain", "mixed"])
def test_work_waits_on_a_busy_cluster_however_many_actions_end(load: Load) -> None:
    cluster = BusyCluster(2, load)
    cluster.begin(100)
    unanswered = cluster.dispatcher.unanswered
    assert unanswered >= 100 + 2 * CORES
    for _ in range(5):
        assert cluster.run(50) > 0.0
        cluster.dispatcher.check()
        assert cluster.dispatcher.unanswered == unanswered, "each answered action is followed by one"
        assert sum(pool.waiting for pool in cluster.dispatcher.survey().pools) > 0
