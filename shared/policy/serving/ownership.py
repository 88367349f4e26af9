"""Ownership of the GPUs of a node: those above its share are drained and given away, and acquired before the next use.

Laws (tests/shared/policy/serving/test_ownership.py):
  - a GPU is given away (`Release`) only after it was drained: no action uses it or waits for it, and it has no engine;
  - it is used again only after an `Acquire` that succeeded. A failed hook leaves it `unknown`, which is never used;
  - one hook call is under way at a time. After a failure the next one waits, twice as long with each in a row;
  - whole chunks are drained: what stays has a block as large as any choice of idle GPUs could leave;
  - what is held has a chunk of the largest degree that the share allows. Otherwise work of that degree would wait for
    ever on scattered GPUs. For that, more GPUs than the share may be held while actions use the others;
  - GPUs with a quarantined engine are held beyond the share. Otherwise work of its service would wait for its probe
    beside good GPUs that were given away;
  - after a restart a GPU is as recorded (`Recorded`). One whose hook was interrupted is used by nobody before that hook
    was called again. So both hooks are called for GPUs that are in that state already.

A share that grows takes back drained GPUs at once. One that shrinks counts after `release_after_s`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import InitVar, dataclass, field
from math import inf
from types import MappingProxyType
from typing import Final, Literal

from shared.policy.model.chunks import SIZES, Chunk

Ownership = Literal["held", "draining", "releasing", "released", "acquiring", "unknown"]
"""`draining`: its engines are evicted, and nothing is granted on it. `releasing`, `acquiring`: a hook is called.
`unknown`: a hook has failed, or a restart has interrupted it: it may be in use elsewhere."""
Recorded = Literal["held", "releasing", "released", "acquiring"]
"""State of a GPU that outlives the manager: written before a hook begins, and after it has succeeded."""
Hook = Literal["on_release", "on_acquire"]
MOST_DOUBLINGS: Final = 10


@dataclass(frozen=True, slots=True)
class Drain:
    """Refuse actions on these GPUs, and evict their engines."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UseAgain:
    """These GPUs may be used again."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Call the hook `on_release` for these GPUs. `HookEnded` follows."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Acquire:
    """Call the hook `on_acquire` for these GPUs. `HookEnded` follows."""

    gpus: tuple[int, ...]


OwnershipCommand = Drain | UseAgain | Release | Acquire


@dataclass(slots=True)
class GpuOwnership:
    """Ownership of each GPU of one node. A method is O(GPUs log GPUs)."""

    gpus: int
    release_after_s: float = 10.0
    """Time for which GPUs above the share stay held."""
    first_retry_s: float = 1.0
    most_retry_s: float = 60.0
    recorded: InitVar[Mapping[int, Recorded]] = MappingProxyType({})
    """By GPU, as the former manager has recorded it; one without a record is held."""
    states: list[Ownership] = field(init=False)
    reasons: list[str] = field(init=False)
    """By GPU: why it is not held."""
    _above_s: float = inf
    """Time since which more GPUs are held than the share; infinity: not now."""
    _failures: int = 0
    """Calls in a row that have failed."""
    _last_failure: str = ""
    """Text about the last of them, for reasons."""
    _not_before_s: float = -inf
    """Time of the next hook call."""
    _interrupted: dict[int, Hook] = field(default_factory=dict)
    """GPU -> its hook that a restart has interrupted, until that is called again."""

    def __post_init__(self, recorded: Mapping[int, Recorded]) -> None:
        self.states, self.reasons = ["held"] * self.gpus, [""] * self.gpus
        for gpu in recorded.keys() & range(self.gpus):
            match recorded[gpu]:
                case "released":
                    self._set((gpu,), "released", "it was released before the manager started")
                case "releasing" | "acquiring" as during:
                    self._interrupted[gpu] = hook = "on_release" if during == "releasing" else "on_acquire"
                    self._set((gpu,), "unknown", f"a restart of the manager has interrupted the hook {hook}")

    @property
    def unavailable(self) -> tuple[int, ...]:
        """GPUs on which nothing may be granted."""
        return tuple(gpu for gpu, state in enumerate(self.states) if state != "held")

    def settle(
        self,
        now: float,
        share: int | None,
        busy: Set[int],
        engines: Set[int],
        degree: int = 1,
        broken: Set[int] = frozenset(),
    ) -> list[OwnershipCommand]:
        """Return what to do now.

        Args:
            now: seconds, never less than in an earlier call.
            share: GPUs that the node owns. None: it is not known yet, so only interrupted hooks are called again.
            busy: GPUs that actions use or wait for.
            engines: GPUs on which an engine has memory or a step under way.
            degree: largest degree of the node's model services.
            broken: GPUs on which an engine is quarantined.
        """
        if share is None:
            return self._call(now, None, busy | engines)
        commands: list[OwnershipCommand] = []
        block = max((size for size in SIZES if size <= min(share, degree, self.gpus)), default=0)
        if share > 0:
            share = min(self.gpus, share + len(broken & {*self._in("held", "acquiring")}))
        missing = self._missing(share, block, broken)
        if back := tuple(sorted(missing & set(self._in("draining")))):
            commands.append(UseAgain(back))
            self._set(back, "held", "")
        held = self._in("held", "acquiring")
        self._above_s = min(self._above_s, now) if len(held) > share else inf
        if not missing and now >= self._above_s + self.release_after_s:
            idle, good = self._in("held", but=busy), self._in("held", but=broken)
            drained = _spared(self._in("held"), good, idle, len(held) - share, block)
            commands += [Drain(drained)] if drained else []
            self._set(drained, "draining", "the node's share has fewer GPUs")
        return commands + self._call(now, missing - set(back), busy | engines)

    def _missing(self, share: int, block: int, broken: Set[int]) -> set[int]:
        """Return GPUs to take back: for a block of that size if none is held, and for the share."""
        held, draining = set(self._in("held", "acquiring")), self._in("draining")
        away = self._in("released", "unknown", but=self._interrupted.keys())
        possible, taken = {*held, *draining, *away}, set[int]()
        blocks = [set(chunk.gpus) for chunk in _chunks(possible, block)] if block else []
        blocks = [one for one in blocks if not one & broken] or blocks
        if blocks and not any(one <= held for one in blocks):
            taken = min(blocks, key=lambda one: (len(one - held), len(one - {*held, *draining}))) - held
        for source in (draining, away):
            left = tuple(gpu for gpu in source if gpu not in taken)
            taken.update(_chosen(tuple(possible), left, share - len(held | taken)))
        return taken

    def _call(self, now: float, missing: Set[int] | None, occupied: Set[int]) -> list[OwnershipCommand]:
        """Begin a call if none is under way: one that was interrupted, or GPUs are missing or free to be given away."""
        if self._in("releasing", "acquiring") or now < self._not_before_s:
            return []
        interrupted = self._interrupted
        if again := tuple(gpu for gpu, hook in interrupted.items() if hook == "on_acquire"):
            return self._acquire(again)
        if again := tuple(gpu for gpu in interrupted if gpu not in occupied):
            return self._release(again)
        if missing is None:
            return []
        if missing:
            return self._acquire(tuple(sorted(missing)))
        return self._release(self._in("draining", "unknown", but=occupied))

    def _acquire(self, gpus: tuple[int, ...]) -> list[OwnershipCommand]:
        self._set(gpus, "acquiring", f"the hook on_acquire is called{self._last_failure}")
        return [Acquire(gpus)] if gpus else []

    def _release(self, gpus: tuple[int, ...]) -> list[OwnershipCommand]:
        self._set(gpus, "releasing", f"the hook on_release is called{self._last_failure}")
        return [Release(gpus)] if gpus else []

    def ended(self, now: float, error: str = "") -> list[OwnershipCommand]:
        """Handle the end of the hook call that is under way. `error`: empty if it has succeeded."""
        releasing, acquiring = self._in("releasing"), self._in("acquiring")
        if error:
            hook = "on_release" if releasing else "on_acquire"
            pause_s = self.first_retry_s * 2.0 ** min(self._failures, MOST_DOUBLINGS)
            self._failures += 1
            self._last_failure = f"; the last call of a hook failed: {error}"
            self._not_before_s = now + min(self.most_retry_s, pause_s)
            self._set(releasing + acquiring, "unknown", f"the hook {hook} failed: {error}")
            return []
        self._failures, self._last_failure = 0, ""
        self._set(releasing, "released", "released by the hook on_release")
        self._set(acquiring, "held", "")
        return [UseAgain(acquiring)] if acquiring else []

    def _in(self, *states: Ownership, but: Set[int] = frozenset()) -> tuple[int, ...]:
        return tuple(gpu for gpu, state in enumerate(self.states) if state in states and gpu not in but)

    def _set(self, gpus: tuple[int, ...], state: Ownership, reason: str) -> None:
        for gpu in gpus:
            self.states[gpu], self.reasons[gpu] = state, reason
            if state != "unknown":
                self._interrupted.pop(gpu, None)


def _spared(
    held: tuple[int, ...], good: tuple[int, ...], idle: tuple[int, ...], count: int, least: int
) -> tuple[int, ...]:
    """Choose up to `count` of the idle GPUs, outside of the largest aligned block of good ones that can stay.

    `least`: size of a block that stays in any case, also if fewer GPUs can be chosen for that; 0: none.
    """
    count, best = min(count, len(idle)), tuple[int, ...]()
    for size in reversed([size for size in SIZES if size >= least]):
        for block in _chunks(set(good), size):
            outside = tuple(gpu for gpu in idle if gpu not in block.gpus)
            if len(outside) >= count:
                return _chosen(held, outside, count)
            best = max(best, outside, key=len)
    return _chosen(held, best if least else idle, count)


def _chosen(together: tuple[int, ...], possible: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Choose up to `count` of the possible GPUs in the largest chunks, each from the smallest block that has it.

    `together`: GPUs whose aligned blocks are kept as large as possible; they contain `possible`.
    """
    whole, left, chosen = set(together), set(possible), set[int]()
    for size in reversed(SIZES):
        while len(chosen) + size <= count:
            found = min(_chunks(left, size), key=lambda chunk: (_block(whole, chunk), chunk.first), default=None)
            if found is None:
                break
            chosen.update(found.gpus)
            whole.difference_update(found.gpus)
            left.difference_update(found.gpus)
    return tuple(sorted(chosen))


def _chunks(gpus: set[int], size: int) -> Iterator[Chunk]:
    for first in range(0, max(gpus, default=-1) + 1, size):
        if gpus.issuperset(range(first, first + size)):
            yield Chunk(first, size)


def _block(gpus: set[int], chunk: Chunk) -> int:
    """Size of the aligned block of GPUs around a chunk."""
    size = chunk.size
    while size < SIZES[-1]:
        first = chunk.first - chunk.first % (2 * size)
        if not gpus.issuperset(range(first, first + 2 * size)):
            break
        size *= 2
    return size
