"""Loops of a plan of model calls: places and their costs, states after them, and the search (see `engine_plan`).

All compiled functions that call each other are in this file, because numba's cache only notices changes in a function's
own file. Those of `engine_states` change this one too, because its digest is here.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shared.policy.elastic import engine_states as of
from shared.policy.model.compiling import compiled
from shared.policy.resources.engine_records import MOST_SLOTS, ROW_COLUMNS

STATES: Final = "fd0ce9ff848eda06"
"""Digest of `engine_states.py`; a test computes it."""
MOST_OPTIONS: Final = 24
"""Most places that are tried for the next call of a plan."""
_ZERO, _TRUE, _FALSE = np.int64(0), np.bool_(True), np.bool_(False)
"""Of one type with computed ones: numba compiles a function once more for a literal."""
_SAME_S: Final = 1e-9


@compiled
def first_place(now, gpus, engines, nodes, values, service, sharers, price, table):  # type: ignore[no-untyped-def]
    """Write the place where a call costs least if nothing else is planned. Returns 1; 0: it has none.

    Costs half as much as a new plan and `append`, because Python neither makes nor passes the arrays of a state.
    `gpus` and `engines` are those of all nodes. `values` as for `engine_states.begin`; behind them the service's row of
    each node, then durations and credits by size, then by node whether it accepts the call.
    """
    own_at = len(values) - nodes - 8
    rows_at = own_at - nodes * 4 * ROW_COLUMNS
    layout = of.Layout(np.empty(nodes + 1, np.int64), np.empty(nodes + 1, np.int64), np.empty((2, gpus)), np.empty(8))
    plan = of.EngineColumns(np.empty((4, engines), np.int64), np.empty((2, engines)))
    states = of.States(
        np.empty((1, gpus)),
        np.empty((1, gpus), np.int64),
        np.empty((1, engines), np.bool_),
        np.empty((1, engines)),
        np.empty((1, engines, MOST_SLOTS)),
        np.empty((1, nodes), np.int64),
    )
    of.begin(now, values, layout, plan, states)
    calls = of.Calls(
        np.full(1, service),
        values[own_at : own_at + 4].reshape((1, 4)),
        values[rows_at:own_at].reshape((1, nodes, 4, ROW_COLUMNS)),
        values[own_at + 8 :].reshape((1, nodes)),
        np.full(1, float(sharers)),
        values[own_at + 4 : own_at + 8].reshape((1, 4)),
        np.zeros(1, np.int64),
    )
    return least(layout, plan, states, calls, _ZERO, price, np.inf, table)


@compiled
def append(layout, plan, states, calls, added, price, table):  # type: ignore[no-untyped-def]
    """Write the state after the first call was placed where it costs least. Returns 1, and its place in the table; 0:
    it has none.
    """
    if not least(layout, plan, states, calls, added, price, np.inf, table):
        return 0
    _take(layout, plan, states, calls, _ZERO, _ZERO, added, table[0])
    return 1


@compiled
def least(layout, plan, states, calls, added, price, latest_s, table):  # type: ignore[no-untyped-def]
    """Write the place of the first call that costs least, of those that begin by `latest_s`, into a table of one."""
    wanted, bounds = np.empty(0, np.int64), (0.0, latest_s, 0.0, 0.0, np.inf)
    most_s = np.inf
    if _expand(layout, plan, states, calls, _ZERO, added, _ZERO, price, wanted, bounds, _TRUE, table, _ZERO):
        most_s = table[0, of.BOUND_S] + _SAME_S  # places without a restore bound the others
    bounds = (0.0, latest_s, 0.0, 0.0, most_s)
    return _expand(layout, plan, states, calls, _ZERO, added, _ZERO, price, wanted, bounds, _FALSE, table, _ZERO)


@compiled
def search(layout, plan, states, calls, added, price, most, found):  # type: ignore[no-untyped-def]  # noqa: C901
    """Write the best plan of all calls in the order of begins, and the state after it. Returns the number of calls; 0:
    none was found, for example because one of them has no place.
    """
    count, depth, evaluated, best_s = len(calls.service), _ZERO, 0, np.inf
    tables = np.empty((count, MOST_OPTIONS, of.COLUMNS))
    sizes, following = np.zeros(count, np.int64), np.zeros(count, np.int64)
    spent_s, placed = np.zeros(count + 1), np.zeros(count, np.bool_)
    shortest_s = np.full(count, np.inf)
    for call in range(count):
        for node in range(calls.rows.shape[1]):
            for at in range(4):
                shortest_s[call] = min(shortest_s[call], of.shortest_s(calls, call, node, at, _TRUE, price))
    places = 2 * layout.gpus.shape[1]
    while depth >= 0:
        if following[depth] == 0:  # this state is new
            rest_s, begins_s = spent_s[depth], 0.0
            if depth:
                begins_s = tables[depth - 1, following[depth - 1] - 1, of.BEGIN_S]
            sizes[depth], wanted, unplaced = 0, np.empty(count - depth, np.int64), 0
            for call in range(count):
                if not placed[call]:
                    wanted[unplaced], unplaced = calls.service[call], unplaced + 1
                    rest_s += shortest_s[call]
            for call in range(count):
                first = call if placed[call] else calls.like[call]
                while first < call and (placed[first] or calls.like[first] != calls.like[call]):
                    first += 1
                if first == call and not placed[call]:
                    bounds = (begins_s - _SAME_S, np.inf, rest_s - shortest_s[call], count - depth - 1.0, best_s)
                    sizes[depth] = _expand(
                        layout, plan, states, calls, depth, added + depth, call, price, wanted, bounds, _FALSE,
                        tables[depth], sizes[depth],
                    )  # fmt: skip
                    evaluated += places
        at = following[depth]
        if at == sizes[depth] or tables[depth, at, of.BOUND_S] >= best_s - _SAME_S:
            following[depth] = 0
            depth -= 1
            if depth >= 0:
                placed[np.int64(tables[depth, following[depth] - 1, of.CALL])] = False
            continue
        if evaluated >= (most if best_s < np.inf else most + count * count * places):
            break
        following[depth] += 1
        spent_s[depth + 1] = spent_s[depth] + tables[depth, at, of.COST_S]
        if depth == count - 1:
            best_s = spent_s[count]
            for step in range(count):
                for column in range(of.COLUMNS):
                    found[step, column] = tables[step, following[step] - 1, column]
        else:
            _take(layout, plan, states, calls, depth, depth + 1, added + depth, tables[depth, at])
            placed[np.int64(tables[depth, at, of.CALL])] = True
            depth += 1
    if best_s == np.inf:
        return 0
    for step in range(count):
        _take(layout, plan, states, calls, _ZERO, _ZERO, added + step, found[step])
    return count


@compiled
def _expand(  # type: ignore[no-untyped-def]  # noqa: C901
    layout, plan, states, calls, depth, added, call, price, wanted, bounds, resident, table, size
):
    """Insert the places of a call into a table of options, as far as it has room. Returns its new size.

    `resident`: only places where its engine is resident. Among equal costs, a busy engine is joined; then the smallest
    free block is split; then waiting calls keep their engines; then nothing is restored, or loaded, or evicted.

    The loop over the places is in one function, because numba counts references to each array of the arguments in each
    call of a function with several returns: a third of all the time here.
    """
    earliest_s, latest_s, rest_s, later, most_s = bounds
    service, sharers = calls.service[call], calls.sharers[call]
    for node in range(len(layout.gpu_firsts) - 1):
        accepted = calls.accepted[call, node] != 0.0
        holds = accepted and of.holds(layout, plan, states, depth, added, service, node)
        if not accepted or (resident and not holds):
            continue
        own, past = layout.gpu_firsts[node], layout.gpu_firsts[node + 1]
        for at in range(4):
            shortest_s = of.shortest_s(calls, call, node, at, holds, price)
            if shortest_s == np.inf or shortest_s > most_s - rest_s:
                continue
            row, gpus = calls.rows[call, node, at], 1 << at
            last_s, credit_s, each_s = calls.lasts_s[call, at], calls.credits_s[call, at], 1.0 + price * gpus / sharers
            slots, unusable = max(1.0, row[of.ROW_SLOTS]), np.int64(row[of.ROW_UNUSABLE])
            for first in range(0, past - own - gpus + 1, gpus):
                engine = -1
                if holds:
                    engine = of.resident_at(layout, plan, states, depth, added, service, node, first, gpus)
                if (resident and engine < 0) or (unusable >> (first // gpus)) & 1:
                    continue
                begin_s, joins, idle_s = _begin(
                    states.until_s, states.holder, states.slots_s, depth, engine, states.left[depth, node],
                    own, past, own + first, gpus,
                )  # fmt: skip
                if begin_s == np.inf or begin_s < earliest_s or begin_s > latest_s:
                    continue
                if size == len(table):
                    most_s = min(most_s, table[size - 1, of.BOUND_S] + _SAME_S)
                room_s = most_s - rest_s
                count, missed, loads, swap_s, end_s = 0, 0, False, 0.0, begin_s + last_s
                if engine < 0:
                    swap_s, loads = of.restore_s(row, first // gpus), not of.sleeps(row, first // gpus)
                else:
                    end_s = max(begin_s, states.ready_s[depth, engine]) + last_s
                share = slots if joins else max(1.0, min(sharers, slots))
                use_cost_s = price * (idle_s + gpus * last_s / share)
                cost_s = end_s + max(0.0, swap_s * each_s - credit_s) + use_cost_s
                if engine < 0 and cost_s <= room_s:  # evictions only add to that
                    evict_s, count, missed = of.evict(
                        layout, plan, states, depth, added, node, first, gpus, row[of.ROW_GB], wanted, _FALSE
                    )
                    cost_s = end_s + max(0.0, (swap_s + evict_s) * each_s - credit_s) + use_cost_s
                bound_s = cost_s + rest_s + begin_s * later
                if cost_s > room_s or bound_s > most_s:
                    continue
                granted_s, preference = -np.inf, min(missed, 7)
                for gpu in range(own + first, own + first + gpus):
                    granted_s = max(granted_s, layout.gpus[of.USED_S, gpu])
                if not joins:
                    preference += (8 + _level(states.until_s, depth, own, past, first, at)) * 8
                preference = ((preference * 2 + (engine < 0)) * 2 + loads) * 2 + (count > 0)
                to = _insert((bound_s, float(preference), granted_s, -float(states.left[depth, node])), table, size)
                if to < len(table):
                    size = min(size + 1, len(table))
                    table[to, of.COST_S], table[to, of.BEGIN_S] = cost_s, begin_s
                    table[to, of.JOINED] = engine if joins else -1
                    table[to, of.CALL], table[to, of.PLACED] = call, node
                    table[to, of.DEGREE], table[to, of.CHUNK] = at, first
    return size


@compiled
def _begin(until_s, holder, slots_s, depth, engine, left, own, past, first, gpus):  # type: ignore[no-untyped-def]
    """Return (begin, whether the engine there is joined, GPU-seconds until then in which its GPUs are idle) of a chunk.
    The begin is infinite if it is never free. `engine`: the resident one of the service; -1: none.
    """
    begin_s, joins, free_s, last_s = 0.0, engine >= 0, 0.0, 0.0
    for gpu in range(first, first + gpus):
        each_s = until_s[depth, gpu]
        if engine < 0 or holder[depth, gpu] != engine:
            begin_s, joins = max(begin_s, each_s), False
        free_s, last_s = free_s + each_s, max(last_s, each_s)
    if not joins and begin_s == 0.0 and gpus > left:
        begin_s = np.inf
        for gpu in range(own, past):
            if until_s[depth, gpu] > 0.0:
                begin_s = min(begin_s, until_s[depth, gpu])
    if engine >= 0:
        begin_s = max(begin_s, slots_s[depth, engine, of.first_slot(slots_s, depth, engine)])
        joins = joins and begin_s < last_s  # else all others have ended
    return begin_s, joins, 0.0 if joins else begin_s * gpus - free_s


@compiled
def _level(until_s, depth, own, past, first, at):  # type: ignore[no-untyped-def]
    """Return the size of the free block around a chunk, as its logarithm."""
    level, is_free = at, True
    while is_free and level < 3:
        block, busy_s = own + first - first % (2 << level), 0.0
        for gpu in range(block, min(block + (2 << level), past)):
            busy_s += until_s[depth, gpu]
        is_free = busy_s <= 0.0 and block + (2 << level) <= past
        level += is_free
    return level


@compiled
def _insert(order, table, size):  # type: ignore[no-untyped-def]
    """Insert a place into a table by its order; the last one of a full table leaves. Returns its row, or the size of
    the table: it is behind all.
    """
    to = size
    while to > 0 and _is_before(order, table[to - 1]):
        to -= 1
    if to < len(table):
        for row in range(min(size, len(table) - 1), to, -1):
            for column in range(of.COLUMNS):
                table[row, column] = table[row - 1, column]
        for column in range(of.LEFT + 1):
            table[to, column] = order[column]
    return to


@compiled
def _is_before(one, other):  # type: ignore[no-untyped-def]
    """Return whether a place precedes another one in a table; bounds that differ by rounding are equal."""
    if abs(one[of.BOUND_S] - other[of.BOUND_S]) > _SAME_S:
        return one[of.BOUND_S] < other[of.BOUND_S]
    for column in range(of.PREFERENCE, of.LEFT + 1):
        if one[column] != other[column]:
            return one[column] < other[column]
    return False


@compiled
def _take(layout, plan, states, calls, depth, to, added, one):  # type: ignore[no-untyped-def]
    """Write the state after a call was placed, in the order in which calls were added."""
    for gpu in range(states.until_s.shape[1]):
        states.until_s[to, gpu], states.holder[to, gpu] = states.until_s[depth, gpu], states.holder[depth, gpu]
    for engine in range(layout.engine_firsts[-1] + added):
        states.resident[to, engine], states.ready_s[to, engine] = (
            states.resident[depth, engine],
            states.ready_s[depth, engine],
        )
        for slot in range(states.slots_s.shape[2]):
            states.slots_s[to, engine, slot] = states.slots_s[depth, engine, slot]
    for other in range(states.left.shape[1]):
        states.left[to, other] = states.left[depth, other]
    call, node, at = np.int64(one[of.CALL]), np.int64(one[of.PLACED]), np.int64(one[of.DEGREE])
    first, size, begin_s, row = np.int64(one[of.CHUNK]), 1 << at, one[of.BEGIN_S], calls.rows[call, node, at]
    new, joins, most = layout.engine_firsts[-1] + added, one[of.JOINED] >= 0, max(1.0, row[of.ROW_SLOTS])
    engine = of.resident_at(layout, plan, states, to, added, calls.service[call], node, first, size)
    ready_s, gb, evict_s = 0.0, row[of.ROW_GB], row[of.ROW_EVICT_S]
    if engine < 0:
        nothing, leave = np.empty(0, np.int64), np.bool_(True)
        slowest_s, _, _ = of.evict(layout, plan, states, to, added, node, first, size, gb, nothing, leave)
        ready_s = begin_s + slowest_s + of.restore_s(row, first // size)
    else:  # from now on the most recent one
        states.resident[to, engine] = False
        ready_s, gb, evict_s = states.ready_s[to, engine], plan.values[of.GB, engine], plan.values[of.EVICT_S, engine]
    for slot in range(states.slots_s.shape[2]):
        free_s = 0.0 if slot < most else np.inf
        if engine >= 0:
            free_s = states.slots_s[to, engine, slot]
        states.slots_s[to, new, slot] = free_s if joins else max(begin_s, free_s)
    plan.numbers[of.SERVICE, new], plan.numbers[of.NODE, new] = calls.service[call], node
    plan.numbers[of.FIRST, new], plan.numbers[of.SIZE, new] = first, size
    plan.values[of.GB, new], plan.values[of.EVICT_S, new] = gb, evict_s
    states.resident[to, new], states.ready_s[to, new] = True, ready_s
    if not joins and begin_s == 0.0:
        states.left[to, node] -= size
    end_s = max(begin_s, ready_s) + calls.lasts_s[call, at]
    states.slots_s[to, new, of.first_slot(states.slots_s, to, new)] = end_s
    for gpu in range(layout.gpu_firsts[node] + first, layout.gpu_firsts[node] + first + size):
        states.until_s[to, gpu] = max(states.until_s[to, gpu], end_s) if joins else end_s
        states.holder[to, gpu] = new
