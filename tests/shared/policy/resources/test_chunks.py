"""Chunks of GPUs against every possible placement, and the rules of their choice."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.elastic.arrange import Choices, arrange
from shared.policy.elastic.engine_states import ROW_LEAST_S
from shared.policy.model.chunks import SIZES, Chunk, ServedModel
from shared.policy.resources.chunk_states import ChunkStates, blocks_of, split
from shared.policy.resources.chunks import GPUS, Chunks
from shared.policy.resources.engine_records import ROW_COLUMNS, floats
from shared.policy.resources.model_residency import Turn
from shared.policy.resources.resource import Use

sizes = st.sampled_from(SIZES)


def turns_of(evicted: Iterable[Turn]) -> dict[str, float]:
    """Services that leave -> beginnings of their turns."""
    return {one.service: one.since_s for one in evicted}


choices = st.sets(sizes, min_size=1).flatmap(
    lambda amounts: st.lists(st.integers(0, 20).map(float), min_size=len(amounts), max_size=len(amounts)).map(
        lambda costs: Choices(sorted(amounts), costs)
    )
)
taken = st.lists(st.tuples(sizes, st.booleans()), max_size=6)


def partly_taken(taken: list[tuple[int, bool]], capacity: int = 8) -> tuple[Chunks, frozenset[int]]:
    """GPUs of which some are taken; those taken and given back leave holes. Also the free ones."""
    chunks, held = Chunks(capacity, GPUS), dict[str, int]()
    for number, (units, _) in enumerate(taken):
        if chunks.fits(units):
            chunks.take(units, f"other {number}")
            held[f"other {number}"] = units
    for number, (units, back) in enumerate(taken):
        if back and held.pop(f"other {number}", 0):
            chunks.give_back(units, f"other {number}")
    return chunks, frozenset(range(capacity)) - {gpu for holder in held for gpu in chunks.numbers(holder)}


def placements(free: frozenset[int], wanted: tuple[int, ...]) -> bool:
    """Oracle: try every aligned cell for each."""
    if not wanted:
        return True
    cells = [frozenset(range(start, start + wanted[0])) for start in range(0, max(free, default=0) + 1, wanted[0])]
    return any(placements(free - cell, wanted[1:]) for cell in cells if cell <= free)


def largest_blocks(free: frozenset[int]) -> tuple[int, ...]:
    """Oracle: the largest aligned cells first."""
    left, found = set(free), list[int]()
    for size in reversed(SIZES):
        for start in range(0, 16, size):
            if left.issuperset(range(start, start + size)):
                left -= set(range(start, start + size))
                found.append(size)
    return tuple(sorted(found))


@given(taken, st.lists(choices, min_size=1, max_size=4))
@settings(deadline=None)
def test_the_dp_over_chunks_is_the_best_of_all_placements(
    others: list[tuple[int, bool]], candidates: list[Choices]
) -> None:
    chunks, free = partly_taken(others)
    table = arrange(candidates, chunks.states({}))
    for count in range(1, len(candidates) + 1):
        costs = [
            sum(one.costs[one.amounts.index(units)] for one, units in zip(candidates, wanted, strict=False))
            for wanted in itertools.product(*[one.amounts for one in candidates[:count]])
            if placements(free, wanted)
        ]
        assert table.cost(count) == min(costs, default=math.inf)


def test_the_operator_finds_what_any_placement_finds_for_every_set_of_free_gpus() -> None:
    """Brute force over all 256 sets of eight GPUs and all sequences of up to four chunks."""
    for bits in range(256):
        free = frozenset(gpu for gpu in range(8) if bits >> gpu & 1)
        assert blocks_of(bits, 8) == largest_blocks(free)
        operator = ChunkStates(blocks_of(bits, 8), 8)
        for length in range(5):
            for wanted in itertools.product(SIZES, repeat=length):
                state: int | None = operator.states - 1
                for units in wanted:
                    state = None if state is None else operator.left(state, units)
                assert (state is not None) == placements(free, wanted), (free, wanted)


def test_a_split_leaves_the_buddies() -> None:
    assert split((8,), 1) == (1, 2, 4)
    assert split((1, 4), 1) == (4,)
    assert split((2, 4), 4) == (2,)
    assert split((1, 1, 1, 1), 2) is None, "four single GPUs are no chunk of two"
    assert split((4,), 3) is None, "three is no degree"


@given(taken, sizes)
def test_a_chunk_fits_if_some_aligned_cell_is_free(others: list[tuple[int, bool]], units: int) -> None:
    chunks, free = partly_taken(others)
    assert chunks.fits(units) == placements(free, (units,))
    if chunks.fits(units):
        largest = largest_blocks(free)
        chunks.take(units, "me")
        mine = chunks.numbers("me")
        assert (len(mine), mine[0] % units) == (units, 0)
        assert free.issuperset(mine)
        smallest = min(size for size in largest if size >= units)
        left = split(largest, units)
        assert left is not None
        assert Counter(largest_blocks(free - set(mine))) == Counter(left), f"a block of {smallest} is split"
        chunks.give_back(units, "me")
    assert largest_blocks(free) == blocks_of(sum(1 << gpu for gpu in free), 8)


def serving(capacity: int = 8, **services: ServedModel) -> Chunks:
    chunks = Chunks(capacity, GPUS)
    chunks.report(services, [80.0] * capacity)
    return chunks


def small(*resident: tuple[int, int], concurrency: int = 1, gb: float = 40.0) -> ServedModel:
    return ServedModel((1, 2), concurrency, gb, frozenset(Chunk(*one) for one in resident))


def test_actions_of_one_service_share_a_chunk_up_to_its_concurrency() -> None:
    chunks = serving(judge=small(concurrency=2))
    for holder in "abc":
        chunks.take(1, holder, Use("judge"))
    assert [chunks.numbers(holder) for holder in "abc"] == [(0,), (0,), (1,)]
    assert (chunks.used, chunks.shared, chunks.free) == (2, 1, 6)
    assert chunks.sharing == {"a", "b"}
    chunks.give_back(1, "a")
    assert (chunks.used, chunks.shared) == (2, 0)
    chunks.give_back(1, "b")
    assert (chunks.used, chunks.free) == (1, 7)


def test_services_never_share_a_gpu() -> None:
    chunks = serving(2, judge=small(concurrency=8), reward=small(concurrency=8))
    chunks.take(2, "a", Use("judge"))
    assert chunks.fits(2, Use("judge"))
    assert not chunks.fits(1, Use("judge")), "another degree is another engine"
    assert not chunks.fits(2, Use("reward"))
    assert not chunks.fits(2, Use()), "and work without a service has its GPUs alone"


def test_a_chunk_that_holds_the_service_is_first_among_equals_then_the_one_used_least_recently() -> None:
    one_gpu = [ServedModel((1,), 1, 40.0, frozenset({Chunk(gpu, 1)})) for gpu in (5, 6)]
    chunks = serving(judge=one_gpu[0], reward=one_gpu[1])
    chunks.take(1, "a", Use("judge", 1.0))
    assert chunks.numbers("a") == (5,)
    chunks.take(1, "b", Use("reward", 2.0))
    assert chunks.numbers("b") == (6,)
    chunks.give_back(1, "a")
    chunks.give_back(1, "b")
    for number in range(6):  # the others, never used before
        chunks.take(1, f"c{number}", Use("reward", 3.0 + number))
    assert {chunks.numbers(f"c{number}")[0] for number in range(6)} == {0, 1, 2, 3, 4, 6}, "GPU 5 was used"
    assert chunks.numbers("c0") == (6,), "it holds the service"


def test_a_chunk_where_the_service_sleeps_is_before_others_by_the_time_until_it_has_woken() -> None:
    full = frozenset(Chunk(gpu, 1) for gpu in (1, 2, 3))
    others = ServedModel((1,), 1, 60.0, full, evict_s={1: 5.0})
    for asleep, gpu in (
        ({}, 0),
        ({Chunk(2, 1): 3.0}, 2),
        ({Chunk(2, 1): 3.0, Chunk(0, 1): 4.0}, 0),  # 8 s with the eviction
        ({Chunk(2, 1): 3.0, Chunk(3, 1): 2.0}, 3),
        ({Chunk(2, 1): 3.0, Chunk(3, 1): 0.0}, 3),  # not measured
        ({Chunk(0, 2): 1.0}, 0),
    ):
        chunks = serving(4, judge=ServedModel((1,), 1, 60.0, restore_s={1: 40.0}, asleep=asleep), reward=others)
        begins_s = 1.0 + asleep.get(Chunk(gpu, 1), 40.0) + (5.0 if gpu else 0.0)
        assert chunks.begins_s(1, Use("judge", 1.0)) == begins_s
        chunks.take(1, "a", Use("judge", 1.0))
        assert chunks.numbers("a") == (gpu,), asleep
        assert chunks.models.since_s(Chunk(gpu, 1), "judge") == begins_s


def test_the_order_between_nodes_is_that_of_their_chunks() -> None:
    def ranked(judge: ServedModel, **others: ServedModel) -> tuple[float, ...]:
        rank = serving(1, judge=judge, **others).rank(1, Use("judge"))
        assert rank is not None
        return rank

    beside = ServedModel((1,), 1, 60.0, frozenset({Chunk(0, 1)}), evict_s={1: 0.5})
    ranks = [
        ranked(small((0, 1))),
        ranked(ServedModel((1,), 1, 40.0, asleep={Chunk(0, 1): 1.0})),
        ranked(ServedModel((1,), 1, 40.0, asleep={Chunk(0, 1): 1.0}), other=beside),
        ranked(ServedModel((1,), 1, 40.0, asleep={Chunk(0, 1): 2.0})),
        ranked(small()),
        ranked(small(), other=beside),
    ]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)


def test_a_plan_reads_where_engines_sleep() -> None:
    asleep = {Chunk(3, 1): 2.0, Chunk(9, 1): 1.0, Chunk(2, 2): 7.0}
    chunks = serving(16, judge=ServedModel((1, 2), 1, 40.0, restore_s={1: 5.0, 2: 6.0}, asleep=asleep))
    row = floats([chunks.service_row("judge")]).reshape(len(SIZES), ROW_COLUMNS)
    none = [-1.0] * 8
    assert row[0, ROW_LEAST_S:].tolist() == [2.0, *none[:3], 2.0, *none[4:]], "the first eight chunks are listed"
    assert row[1, ROW_LEAST_S:].tolist() == [6.0, -1.0, 7.0, *none[2:]]


@pytest.mark.parametrize(
    ("degrees", "resident", "asleep", "gpu"),
    [
        ((1, 4), {4}, {}, 4),
        ((1, 4), {3, 4}, {}, 3),
        ((1, 4), set(), {4: 2.0}, 3),
        ((1,), set(), {4: 2.0}, 4),
    ],
    ids=["it holds the service", "both hold it", "it sleeps in the larger one", "no larger one is needed whole"],
)
def test_a_larger_block_is_split_for_a_chunk_that_holds_the_service(
    degrees: tuple[int, ...], resident: set[int], asleep: dict[int, float], gpu: int
) -> None:
    """GPU 3 is alone, GPUs 4 to 7 are a block."""
    held, sleeping = frozenset(Chunk(at, 1) for at in resident), {Chunk(at, 1): s for at, s in asleep.items()}
    judge = ServedModel((1,), 1, 40.0, held, asleep=sleeping)
    chunks = serving(judge=judge, big=ServedModel(degrees, 1, 40.0))
    for at in range(3):
        chunks.take(1, f"o{at}", Use("", 0.0, (at,)))
    chunks.take(1, "me", Use("judge"))
    assert chunks.numbers("me") == (gpu,)


def test_bad_and_quarantined_chunks_are_not_chosen_and_still_exist() -> None:
    chunks = Chunks(4, GPUS)
    unusable = ServedModel((1, 2), 1, 1.0, unusable=frozenset({Chunk(1, 1), Chunk(2, 2)}))
    chunks.report({"judge": unusable}, [80.0] * 4, bad=[0])
    assert (chunks.capacity, chunks.free) == (4, 3)
    assert not chunks.could_ever(2, Use("judge"))
    assert chunks.could_ever(2), "GPUs 2 and 3 are good for others"
    assert not chunks.could_ever(4)
    chunks.take(1, "a", Use("judge"))
    assert chunks.numbers("a") == (2,)


def test_an_unknown_service_and_an_unknown_degree_have_no_place() -> None:
    chunks = serving(judge=small())
    assert not chunks.could_ever(1, Use("other"))
    assert not chunks.could_ever(4, Use("judge"))
    assert chunks.could_ever(2, Use("judge"))


def test_owned_gpus_limit_new_chunks_and_not_joining() -> None:
    chunks = serving(judge=small(concurrency=2), reward=small())
    chunks.take(1, "a", Use("judge"))
    chunks.share = 1
    assert chunks.fits(1, Use("judge"))
    assert not chunks.fits(1, Use("reward"))
    assert chunks.states({}).units == 0
    assert chunks.states({"a": 1}).units == 1


def test_what_a_node_reports_is_taken_where_it_says() -> None:
    chunks = serving(judge=small(concurrency=4), reward=small())
    chunks.take(2, "a", Use("judge", 0.0, (4, 5)))
    chunks.take(2, "b", Use("judge", 0.0, (4, 5)))
    assert (chunks.numbers("b"), chunks.used) == ((4, 5), 2)
    chunks.take(1, "wrong", Use("reward", 0.0, (5,)))
    assert (chunks.numbers("wrong"), chunks.used) == ((), 3), "it counts, although it cannot be there"
    choice = chunks.choose(2, "judge")
    assert choice is not None
    assert choice.joins == 1, "nothing joins while the node has more than it should"
    chunks.give_back(1, "wrong")
    choice = chunks.choose(2, "judge")
    assert choice is not None
    assert (choice.joins, choice.chunk) == (0, Chunk(4, 2))


def test_a_restore_evicts_only_what_does_not_fit_beside_it() -> None:
    chunks = serving(1, judge=small((0, 1), gb=40.0), reward=small(gb=40.0), large=small(gb=60.0))
    assert turns_of(chunks.evicts(1, Use("judge"), chunks.models.served)) == {}
    assert turns_of(chunks.evicts(1, Use("reward"), chunks.models.served)) == {}, "80 GB hold both"
    assert turns_of(chunks.evicts(1, Use("large"), chunks.models.served)) == {"judge": -math.inf}
    for holder, at_s in (("a", 3.0), ("b", 4.0)):
        chunks.take(1, holder, Use("reward", at_s))
        chunks.give_back(1, holder)
    assert turns_of(chunks.evicts(1, Use("large"), chunks.models.served)) == {"judge": -math.inf, "reward": 3.0}
    assert turns_of(chunks.evicts(1, Use("large"), {"reward", "gone"})) == {"reward": 3.0}
    assert turns_of(chunks.evicts(1, Use("large"), {"gone"})) == {}


def test_a_turn_begins_when_the_restore_is_expected_to_end() -> None:
    """Else a restore that lasts longer than a turn is thrown away before its service has executed anything."""
    slow = ServedModel((1, 2), 1, 60.0, restore_s={1: 6.5})
    chunks = serving(1, judge=slow, reward=small(gb=60.0))
    assert chunks.begins_s(1, Use("judge", 3.0)) == 9.5
    chunks.take(1, "a", Use("judge", 3.0))
    chunks.give_back(1, "a")
    assert turns_of(chunks.evicts(1, Use("reward"), chunks.models.served)) == {"judge": 9.5}
    assert [chunks.begins_s(1, Use("judge", now)) for now in (4.0, 12.0)] == [9.5, 12.0], "it is being restored"
    chunks.take(1, "b", Use("judge", 4.0))
    chunks.give_back(1, "b")
    assert turns_of(chunks.evicts(1, Use("reward"), chunks.models.served)) == {"judge": 9.5}, "the turn goes on"


def test_a_turn_begins_after_the_slowest_eviction_and_the_restore() -> None:
    """A node evicts the engines of a chunk at the same time."""
    slow = ServedModel((1,), 1, 60.0, frozenset({Chunk(0, 1)}), evict_s={1: 10.0})
    quick = ServedModel((1,), 1, 60.0, frozenset({Chunk(1, 1)}), evict_s={1: 0.5})
    small_one = ServedModel((1,), 1, 10.0, frozenset({Chunk(1, 1)}), evict_s={1: 99.0})
    wide = ServedModel((1, 2), 1, 30.0, restore_s={1: 2.0, 2: 1.0}, evict_s={2: 4.0})
    chunks = serving(2, slow=slow, quick=quick, small=small_one, wide=wide)
    assert restore_of(chunks, 2, "wide") == 11.0, "both GPUs, and the small one stays"
    assert chunks.begins_s(2, Use("wide", 1.0)) == 12.0
    chunks.take(1, "a", Use("slow", 1.0))
    assert restore_of(chunks, 1, "wide") == 2.5, "the other GPU, where the small one stays"
    chunks.take(1, "b", Use("wide", 3.0))
    chunks.give_back(1, "b")
    assert turns_of(chunks.evicts(1, Use("quick"), chunks.models.served)) == {"small": -math.inf, "wide": 5.5}, (
        "a turn begins after both"
    )
    assert restore_of(chunks, 1, "wide") == 0.0


def restore_of(chunks: Chunks, units: int, service: str) -> float:
    """Seconds from a grant until its service is expected to be restored."""
    now = 1000.0
    chunks.take(units, "probe", Use(service, now))
    numbers = chunks.numbers("probe")
    since_s = chunks.models.since_s(Chunk(numbers[0], units), service)
    chunks.undo(units, "probe")
    return max(0.0, since_s - now)


@given(st.lists(st.tuples(st.sampled_from(["judge", "reward", ""]), sizes, st.booleans()), max_size=40))
@settings(deadline=None)
def test_no_gpu_ever_has_two_services_or_too_many_holders(steps: list[tuple[str, int, bool]]) -> None:
    chunks = Chunks(8, GPUS)
    served = {"judge": ServedModel((1, 2, 4), 3, 1.0), "reward": ServedModel((1, 8), 1, 1.0)}
    chunks.report(served, [80.0] * 8)
    held: dict[str, tuple[str, int]] = {}
    for number, (service, units, ends) in enumerate(steps):
        use = Use(service, float(number))
        if ends and held:
            name = next(iter(held))
            chunks.give_back(held.pop(name)[1], name)
        elif chunks.fits(units, use):
            assert chunks.could_ever(units, use)
            chunks.take(units, f"h{number}", use)
            held[f"h{number}"] = service, units
        places: dict[int, set[tuple[str, tuple[int, ...]]]] = {}
        for name, (used_by, count) in held.items():
            numbers = chunks.numbers(name)
            assert len(numbers) == count
            for gpu in numbers:
                places.setdefault(gpu, set()).add((used_by or name, numbers))
        assert all(len(here) == 1 for here in places.values())
        assert len(places) == chunks.used == 8 - chunks.free
        together = Counter((used_by, chunks.numbers(name)) for name, (used_by, _) in held.items() if used_by)
        assert all(count <= served[used_by].concurrency for (used_by, _), count in together.items())


def test_released_gpus_are_not_chosen_and_work_may_wait_for_them() -> None:
    chunks = Chunks(4, GPUS)
    chunks.report({"judge": small(concurrency=2)}, [80.0] * 4, bad=[0], released=[1, 2, 3])
    assert (chunks.capacity, chunks.free) == (4, 0)
    assert not chunks.fits(1, Use("judge"))
    assert chunks.states({}).units == 0
    assert chunks.could_ever(2, Use("judge")), "GPUs 2 and 3 come back when the share needs them"
    assert not chunks.could_ever(4), "GPU 0 is bad"
    chunks.report({"judge": small(concurrency=2)}, [80.0] * 4, bad=[0], released=[1, 2])
    assert chunks.free == 1
    chunks.take(1, "a", Use("judge"))
    assert chunks.numbers("a") == (3,)
    chunks.report({"judge": small(concurrency=2)}, [80.0] * 4, released=[3])
    chunks.take(1, "b", Use("judge"))
    assert chunks.numbers("b") == (2,), "it does not join an engine on a GPU that is drained"
    assert chunks.free == 2


@given(st.integers(0, 255), st.integers(0, 255), st.sampled_from([1, 2, 4, 8]))
def test_released_and_bad_gpus_differ_only_in_what_could_ever_be(bad: int, released: int, units: int) -> None:
    def gpus(mask: int) -> list[int]:
        return [gpu for gpu in range(8) if mask >> gpu & 1]

    one, other = Chunks(8, GPUS), Chunks(8, GPUS)
    one.report({}, [80.0] * 8, bad=gpus(bad), released=gpus(released))
    other.report({}, [80.0] * 8, bad=gpus(bad | released))
    assert (one.free, one.choose(units)) == (other.free, other.choose(units))
    other.report({}, [80.0] * 8, bad=gpus(bad))
    assert one.could_ever(units) == other.could_ever(units)


nowhere = st.sampled_from(
    [Chunk(-1, 1), Chunk(-2, 2), Chunk(5000, 1), Chunk(8, 1), Chunk(1, 2), Chunk(0, 3), Chunk(0, 0)]
)
measures = st.sampled_from([-1.0, -math.inf, math.nan, math.inf, 1e300])


@given(st.lists(st.tuples(nowhere, measures, st.sampled_from([-8, 0])), min_size=1, max_size=3))
def test_a_report_of_what_cannot_be_leaves_a_node_usable(reported: list[tuple[Chunk, float, int]]) -> None:
    chunks = Chunks(8, GPUS)
    for chunk, measure, count in reported:
        by_degree = {1: measure, 2: measure, 3: 1.0}
        held = ServedModel((1, 2, 3, -1, count), count, measure, frozenset({chunk, Chunk(0, 1)}),
                           frozenset({chunk, Chunk(2, 2)}), by_degree, by_degree, by_degree,
                           {chunk: 1.0, Chunk(4, 1): measure})  # fmt: skip
        chunks.report({"A": held, "B": held}, [measure] * 9, [-1, 8, 7], [-1, 8, 6])
        served = chunks.models.served["A"]
        assert (served.degrees, served.concurrency, served.gb(1)) == ((1, 2), 1, 0.0)
        assert (served.resident, served.unusable) == (frozenset({Chunk(0, 1)}), frozenset({Chunk(2, 2)}))
        assert served.asleep == {Chunk(4, 1): 0.0}
        assert np.isfinite(floats([chunks.service_row("A")])).all()
        assert chunks.engine_records().engines == 2
        assert [*chunks.models.memory(), *served.restore_s, *served.evict_s] == [0.0] * 8 + [3, 3]
    choice = chunks.choose(1, "A")
    assert choice is not None
    assert choice.chunk == Chunk(0, 1)
    assert chunks.free == 6


@pytest.mark.parametrize(
    ("units", "numbers"), [(1, (-1,)), (2, (-2, -1)), (1, (8,)), (1 << 40, (0,)), (3, (0, 1, 2)), (-1, (0,))]
)
def test_numbers_that_a_node_does_not_have_are_no_chunk(units: int, numbers: tuple[int, ...]) -> None:
    chunks = serving(judge=small())
    chunks.take(units, "a", Use("judge", 0.0, numbers))
    assert (chunks.numbers("a"), chunks.used) == ((), units)
    chunks.give_back(units, "a")
    assert chunks.free == 8
