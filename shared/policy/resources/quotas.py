"""Quotas: resources that belong to no node, shared by the whole mesh. A part of the one ledger.

A quota has limits of concurrency (held from the grant until the end of the attempt is reported, like units; an orphan
keeps them) and rates (taken at the grant and refilled by time). All limits of a quota hold at once. Laws:
  - no grant lets the amounts held exceed a concurrency limit. They exceed it after the limit was lowered, or if a node
    that counted as lost comes back with its attempts; then nothing is granted until enough attempts have ended;
  - in every window of w seconds a rate gives at most burst + limit * w / period, and one without a period gives at most
    its limit, ever. An attempt counts with what it has taken, from its grant; if less was used, with that. If more was
    used, the rest counts from the end of the attempt, and every window that ends with a grant keeps the law;
  - a hold is taken from all its quotas or from none, and settled once.

Oracle: tests/shared/policy/resources/test_quotas.py. The store repeats each take and each settlement with the same
arithmetic (`send_grants`), so a new leader reads exactly this state.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, field

from shared.policy.model.quotas import NO_QUOTAS, Amounts, Level, QuotaHold, QuotaLimits, Rate, Refund, Settled, exceeds
from shared.policy.resources.brakes import Brakes
from shared.policy.resources.predicted_ends import PredictedEnds
from shared.policy.resources.quota_changes import change_rate
from shared.policy.resources.quota_shares import QuotaShares
from shared.policy.resources.settling import Settling, believable


@dataclass(slots=True)
class Quotas:
    """Quotas of the mesh by name, and the amounts taken from them. A method is O(limits of the named quotas) if its
    docstring has no other cost. A change of a hold also moves 8 bytes for each hold of its quotas.
    """

    limits: dict[str, QuotaLimits] = field(default_factory=dict)
    holds: dict[str, QuotaHold] = field(default_factory=dict)
    """By `QuotaHold.key`."""
    levels: dict[tuple[str, float | None], Level] = field(default_factory=dict)
    """(Quota, period of a rate) -> its level. That of a deleted rate is kept until it is full: it may come back."""
    former: dict[tuple[str, float | None], Rate] = field(default_factory=dict)
    """(Quota, period) -> deleted rate whose level is kept."""
    used: dict[str, float] = field(default_factory=dict)
    """Quota -> amounts of its holds together."""
    holders: PredictedEnds = field(default_factory=PredictedEnds)
    changed: dict[str, None] = field(default_factory=dict)
    """Quotas since the last scheduling round of which more may be free, or of which money was spent, in order."""
    changes: list[QuotaHold | Settled] = field(default_factory=list)
    """Settlements, and holds that a node reported, that were not yet collected for the store (`collect`)."""
    refunded: bool = False
    """A rate without refill got a refund: actions that were set aside for it may be queued again."""
    by_node: dict[str, dict[str, QuotaHold]] = field(default_factory=dict)
    """Node -> `QuotaHold.key` -> its hold; no entry for a node without holds."""
    absent_s: dict[str, float] = field(default_factory=dict)
    """Node of a former leader's hold -> time since which it has been absent."""
    ends: dict[str, float] = field(default_factory=dict)
    """`QuotaHold.key` -> predicted end of its attempt; the time of the grant for one of a former leader."""
    brakes: Brakes = field(default_factory=Brakes)
    """What external services have answered: `quota_feedback` changes it."""
    settling: Settling = field(default_factory=Settling)
    shares: QuotaShares = field(default_factory=QuotaShares)

    # ---- limits ------------------------------------------------------------------------------------------------

    def set(self, name: str, limits: QuotaLimits | None, now: float = 0.0, *, read: bool = False) -> None:
        """Create, change or delete (None) a quota (`quota_changes`). `read`: a new leader reads it from the store."""
        self.former |= (present := {(name, rate.period_s): rate for rate in self._rates(name)})
        for rate in () if limits is None else limits.rates:
            key = (name, rate.period_s)
            former, new = self.former.pop(key, rate), not (read or key in present)
            self.changes += change_rate(self.levels, self.settling, name, former, rate, now, new=new)
        if limits is None:
            self.limits.pop(name, None)
        else:
            self.limits[name] = limits
        self.shares.set(name, limits)
        self.changed[name] = None

    def forget_full(self, now: float) -> None:
        """Remove the levels of deleted rates that are full again. O(deleted rates that are not)."""
        for key, rate in list(self.former.items()):
            if not self.levels.get(key, Level()).at(now, rate):
                del self.former[key]
                self.levels.pop(key, None)
                self.settling.histories.pop(key, None)

    def missing(self, name: str, rate: Rate, now: float) -> float:
        """Amount that is missing from the full bucket of a rate."""
        return self.levels.get((name, rate.period_s), Level()).at(now, rate)

    # ---- decisions ---------------------------------------------------------------------------------------------

    def fits(self, amounts: Amounts, now: float) -> bool:
        """Return whether all these amounts can be taken now."""
        return self.lacking(amounts, now) is None

    def lacking(self, amounts: Amounts, now: float) -> str | None:
        """Return the first of these quotas of which the amount cannot be taken now; None if all can."""
        for name, amount in amounts.items():
            limits = self.limits.get(name)
            if limits is None:
                return name
            if limits.concurrency and exceeds(self.used.get(name, 0.0) + amount, min(limits.concurrency)):
                return name
            for rate in limits.rates:
                if exceeds(self.missing(name, rate, now) + amount, rate.most):
                    return name
            if self.brakes.by_quota and self.brakes.blocks(name, len(self.holders.of(name)), now):
                return name
        return None

    def free_at(self, amounts: Amounts, now: float) -> float:
        """Return the time at which these amounts can be taken together; infinity if never.

        Exact for rates; for concurrency by predicted ends. If concurrency lacks, O(holds that have to end first).
        """
        at_s = self.refilled_at(amounts, now)
        for name, amount in amounts.items():
            limits = self.limits.get(name)
            if limits is None:
                return math.inf
            for most in limits.concurrency:
                at_s = max(at_s, self.ended_at(name, most - amount, now))
            if name in self.brakes.by_quota:
                at_s = max(at_s, self.brakes.call_at(name, self.holders.of(name), now))
        return at_s

    def refilled_at(self, amounts: Amounts, now: float) -> float:
        """Return when the rates and brakes of these quotas can give these amounts together; infinity if never."""
        at_s = now
        for name, amount in amounts.items():
            at_s = max(at_s, self.brakes.free_s(name, now))
            for rate in self._rates(name):
                at_s = max(at_s, self._rate_refilled_at(name, rate, amount, now))
        return at_s

    def refilled_behind(self, amounts: Amounts, ahead: Amounts, now: float) -> float:
        """Return when rates that are refilled can give these amounts after others have taken those `ahead`."""
        at_s = now
        for name, rate in self.rates_of(amounts):
            if rate.per_s and not exceeds(amounts[name], rate.most):
                needed = self.missing(name, rate, now) + ahead.get(name, 0.0) + amounts[name]
                at_s = max(at_s, now + (needed - rate.most) / rate.per_s)
        return at_s

    def _rate_refilled_at(self, name: str, rate: Rate, amount: float, now: float) -> float:
        needed = self.missing(name, rate, now) + amount
        if not exceeds(needed, rate.most):
            return now
        if not rate.per_s or exceeds(amount, rate.most):
            return math.inf
        at_s = now + (needed - rate.most) / rate.per_s
        return max(at_s, math.nextafter(now, math.inf))  # later, also if the sum is rounded

    def ended_at(self, name: str, most: float, now: float) -> float:
        """Return the time at which the amounts held are predicted to be at most this; in the past if it is overdue."""
        used = self.used.get(name, 0.0)
        if not exceeds(used, most):
            return now
        for end_s, _, amount in self.holders.of(name):
            used -= amount
            if not exceeds(used, most):
                return end_s
        return math.inf

    def delays(self, head: Amounts, until_s: float, amounts: Amounts, end_s: float, now: float) -> bool:
        """Return whether taking these amounts now, until `end_s`, would make too little left for the head at `until_s`.

        Only quotas that both name matter. `until_s` is finite. If these amounts are held for longer, O(holds that end
        on one side of `until_s`).
        """
        for name, amount in amounts.items():
            limits = self.limits.get(name)
            if name not in head or limits is None:
                continue
            for rate in limits.rates:
                missing = Level(self.missing(name, rate, now) + amount, now).at(until_s, rate)
                if exceeds(missing + head[name], rate.most):
                    return True
            if limits.concurrency and end_s > until_s:
                held = self.holders.held_after(name, self.used.get(name, 0.0), until_s)
                if any(exceeds(held + amount + head[name], most) for most in limits.concurrency):
                    return True
            if end_s > until_s and self.brakes.delays(name, self.holders.of(name), until_s):
                return True
        return False

    # ---- changes of what is taken: all of them are here --------------------------------------------------------

    def take(self, hold: QuotaHold, end_s: float, *, answers: bool = True) -> None:
        """Take the amounts of a new attempt, predicted to end at `end_s`. `answers`: it reports those of services."""
        key, amounts, at_s = self.restore(hold, end_s), hold.amounts, hold.at_s
        self.settling.begin(key)
        for name in amounts if self.brakes.by_quota and answers else ():
            self.brakes.granted(name, key, at_s)
        for name, rate in self.rates_of(amounts):
            self._add(name, rate, amounts[name], at_s)
        self.shares.take(hold)

    def restore(self, hold: QuotaHold, end_s: float) -> str:
        """Add a hold of a former leader, whose rates were restored with `restore_level`. Returns its key."""
        key = hold.key
        assert key not in self.holds, f"{key} is taken twice"
        self.holds[key], self.ends[key] = hold, end_s
        self.by_node.setdefault(hold.node, {})[key] = hold
        for name, amount in hold.amounts.items():
            self.used[name] = self.used.get(name, 0.0) + amount
            self.holders.add(name, (end_s, key, amount))
        return key

    def expect_end(self, key: str, end_s: float) -> None:
        """Set the predicted end of a hold's attempt."""
        before, self.ends[key] = self.ends[key], end_s
        for name, amount in self.holds[key].amounts.items():
            self.holders.remove(name, before, key)
            self.holders.add(name, (end_s, key, amount))

    def adopt(self, hold: QuotaHold, end_s: float) -> None:
        """Restore the hold of a reported attempt that had counted as lost. Its rates were taken at the grant."""
        self.restore(hold, end_s)
        self.changes.append(hold)

    def restore_level(self, name: str, period_s: float | None, level: Level, now: float = 0.0) -> None:
        """Restore the level of a rate from the store. A former leader may not have applied a change of the rate."""
        self.levels[name, period_s] = level
        rate = next((rate for rate in self._rates(name) if rate.period_s == period_s), None)
        if rate is None:
            self.former[name, period_s] = level.rate(period_s)
        else:
            self.changes += change_rate(self.levels, self.settling, name, rate, rate, now)
        self.changed[name] = None

    def settle(
        self,
        key: str,
        *,
        not_begun_s: float | None = None,
        used: Amounts = NO_QUOTAS,
        unexecuted: bool = False,
        now: float = 0.0,
    ) -> None:
        """End a hold: its concurrency is free. No effect if it is not known (settled before).

        Each rate is corrected (`settling`) to what was really `used`, if that can be true. `now`: present time.
        `not_begun_s`: the same, if the attempt has certainly not begun. `unexecuted`: rates without a period get back
        what `used` does not name. O(`MOST_LOWS`) for each rate.
        """
        hold = self.holds.get(key)
        if hold is None:
            return
        if not_begun_s is not None:
            used, now = dict.fromkeys(hold.amounts, 0.0), not_begun_s
        used, began = believable(used, hold.amounts) if used else used, not_begun_s is None
        corrections = self._correct(hold, used, now, began, unexecuted) if used or unexecuted else ()
        self._remove(key)
        self.changes.append(Settled(key, hold.action, corrections))

    def _correct(self, hold: QuotaHold, used: Amounts, now: float, began: bool, unexecuted: bool) -> tuple[Refund, ...]:
        """Correct rates to what an attempt has used. Slots that it held stay charged to its tenant."""
        refunds: list[Refund] = []
        charged = {} if began else dict(used)
        for name, rate in self.rates_of(hold.amounts if unexecuted else used):
            amount = used.get(name, hold.amounts[name] if rate.period_s else 0.0)
            back = self.settling.correction(hold, name, rate, amount, self.levels.get((name, rate.period_s)), now)
            debit = min(-min(back, 0.0), 2 * rate.most)  # a wrong report must not end the tenant's turns for good
            charged[name] = max(charged.get(name, 0.0), min(amount, hold.amounts[name] + debit))
            if back:
                self._add(name, rate, -back, now)
                refunds.append(Refund(name, rate, back, now))
        self.shares.correct(hold, charged)
        return tuple(refunds)

    def undo(self, key: str) -> None:
        """Undo a take whose grant was never sent. The store does not know it."""
        hold = self._remove(key, unsent=True)
        if hold is not None:
            for name, rate in self.rates_of(hold.amounts):
                self._add(name, rate, -hold.amounts[name], hold.at_s)
            self.shares.correct(hold, dict.fromkeys(hold.amounts, 0.0))

    def _add(self, name: str, rate: Rate, amount: float, at_s: float) -> None:
        """Add to the amount that is missing from a rate; a negative amount is given back."""
        key, per_s = (name, rate.period_s), rate.per_s
        level = self.levels.get(key) or Level(new_s=at_s)
        at_s = max(at_s, level.at_s)  # the level may be of a clock that was ahead of this one
        missing = level.at(at_s, rate)
        if amount > 0:
            self.settling.increase(name, rate, missing)
        self.levels[key] = Level(max(0.0, missing + amount), at_s, per_s, rate.most, level.new_s)
        if amount < 0 or not per_s:
            self.changed[name] = None  # more is free, or what is left may never be enough for others
            self.refunded = self.refunded or (amount < 0 and not per_s)

    def _remove(self, key: str, *, unsent: bool = False) -> QuotaHold | None:
        hold = self.holds.pop(key, None)
        if hold is not None:
            end_s = self.ends.pop(key)
            self.settling.taken.pop(key, None)
            self.shares.end(hold)
            del self.by_node[hold.node][key]
            if not self.by_node[hold.node]:
                del self.by_node[hold.node]
            for name, amount in hold.amounts.items():
                self.used[name] -= amount
                self.changed[name] = None
                self.brakes.ended(name, key, hold.at_s if unsent else None)
                if not self.holders.remove(name, end_s, key):
                    del self.used[name]  # exactly nothing, without rounding errors
        return hold

    def _rates(self, name: str) -> tuple[Rate, ...]:
        return self.limits[name].rates if name in self.limits else ()

    def rates_of(self, amounts: Amounts) -> tuple[tuple[str, Rate], ...]:
        """All rates of these quotas."""
        return tuple([(name, rate) for name in amounts for rate in self._rates(name)])

    def on_node(self, node: str) -> list[QuotaHold]:
        """Holds of attempts on a node. O(holds of the node)."""
        return list(self.by_node.get(node, {}).values())

    def long_absent(self, now: float, present: Container[str], grace_s: float) -> list[str]:
        """Return the nodes with holds that calls have found absent for more than `grace_s`. O(nodes with holds)."""
        self.absent_s = {node: self.absent_s.get(node, now) for node in self.by_node if node not in present}
        return [node for node, since_s in self.absent_s.items() if now - since_s > grace_s]

    def collect(self) -> list[QuotaHold | Settled]:
        """Return the changes since the last call, for the store."""
        changes, self.changes = self.changes, []
        return changes
