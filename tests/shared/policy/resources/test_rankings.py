"""Rankings of nodes beside sorted lists, while nodes change, join and leave."""

from __future__ import annotations

from random import Random

import pytest

from shared.policy.resources.ledger import Node
from shared.policy.resources.rankings import MOST_RANKINGS, Key, Rankings


def most_free_first(node: Node) -> Key | None:
    return (-node.free("cores"),) if node.ready else None


@pytest.mark.parametrize("seed", range(5))
def test_a_ranking_follows_all_changes(seed: int) -> None:
    rng = Random(seed)
    nodes: dict[str, Node] = {}
    rankings = Rankings(nodes)
    for at in range(3000):
        name = f"n{rng.randrange(12)}"
        node = nodes.get(name)
        event = rng.random()
        if node is None:
            nodes[name] = Node(name, "1", "cpu", {"cores": 8}, frozenset(), changes=rankings)
            rankings.touch(name)
        elif event < 0.05:
            del nodes[name]
            rankings.touch(name)
        elif event < 0.1:
            node.become_ready()
        elif event < 0.2:
            node.own("cores", rng.randrange(9))
        elif event < 0.6:
            node.take({"cores": 1}, f"a{at}")
        elif node.taken("cores"):
            node.give_back({"cores": 1}, "")
        if rng.random() < 0.3:
            expected = sorted((key, one.name) for one in nodes.values() if (key := most_free_first(one)) is not None)
            assert rankings.get("free", lambda: most_free_first).entries == expected
        rankings.check()
        rankings.shorten()


def test_a_long_log_is_cleared_and_rankings_stay_right() -> None:
    node = Node("n", "1", "cpu", {"cores": 9000}, frozenset(), ready=True)
    rankings = Rankings({"n": node})
    node.changes = rankings
    ranking = rankings.get("free", lambda: most_free_first)
    for _ in range(4000):
        node.take({"cores": 1}, "")
        rankings.shorten()
    assert ranking.read < 1100, "the log does not grow for ever"
    assert rankings.get("free", lambda: most_free_first) is ranking
    assert ranking.entries == [((-5000,), "n")]


def test_the_ranking_used_least_recently_is_removed() -> None:
    rankings = Rankings({})
    first = rankings.get("first", lambda: most_free_first)
    second = rankings.get("second", lambda: most_free_first)
    for at in range(MOST_RANKINGS - 2):
        rankings.get(at, lambda: most_free_first)
    assert rankings.get("first", lambda: most_free_first) is first
    rankings.get("one more", lambda: most_free_first)
    assert rankings.get("first", lambda: most_free_first) is first
    assert rankings.get("second", lambda: most_free_first) is not second
