"""State of one instance, and the memory that it may use.

The memory is an upper bound of what the engine really holds, whatever the outcome of the step under way: `claim` and
`host` grow when a step begins, and shrink when its end is confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

from shared.policy.serving.model import HolderEnded, InstanceId, Level, ModelServiceSpec, Place, State, Step


class WaitingHolder(NamedTuple):
    """Holder that waits for its instance."""

    order: int
    """Arrivals on the node before it."""
    arrived_s: float
    deadline_s: float


@dataclass(slots=True)
class Activation:
    """Steps that make an instance resident: room, load or restore, canary. It owns the GPUs of its chunk."""

    room: dict[InstanceId, None] = field(default_factory=dict)
    """Instances whose evictions and stops are under way for it."""
    oom: bool = False
    """It ran out of memory once, and the next LRU instance was evicted."""


@dataclass(slots=True)
class EngineInstance:
    """One engine of a service on one chunk. Each method is O(1) if its docstring has no other cost."""

    id: InstanceId
    spec: ModelServiceSpec
    """That with which its engine was started, with the memory of its degree."""
    state: State = "cold"
    since_s: float = 0.0
    why: str = ""
    place: Place = "cold"
    """Confirmed place of its engine."""
    claim: Place = "cold"
    """Place for which its device memory is counted: the greatest that is possible."""
    host: Level = "cold"
    """Level for which its host memory is counted."""
    step: Step | None = None
    target: Level = "cold"
    """Level of the eviction under way."""
    checked: bool = False
    """A canary has succeeded since it became awake."""
    activation: Activation | None = None
    room_for: InstanceId | None = None
    """Instance for whose activation it is evicted or stopped."""
    waiting: dict[str, WaitingHolder] = field(default_factory=dict)
    """In the order of their arrival."""
    running: dict[str, None] = field(default_factory=dict)
    used_s: float = -inf
    """Last time at which a holder was admitted or ended."""
    restored_s: float = -inf
    """Time at which it became resident; minus infinity if it was found so."""
    drain_s: float | None = None
    """Time since which it is fenced with holders."""
    aborted_s: float | None = None
    leaving: str = ""
    """Reason for which its engine is drained and stopped; empty: none."""
    stop_why: str = ""
    """Reason for which its engine is stopped as soon as nothing wakes up on its GPUs; empty: none."""
    cancelled: Literal["", "unheld", "late"] = ""
    """Its load or restore is being cancelled: nobody waited for it, or it was late (`cancellations`)."""
    late: int = 0
    """Loads and restores that were cancelled because they were late, since the last one that ended by itself."""
    yields_until_s: float | None = None
    """End of the yield of its load or restore (`yields`); None: it does not yield."""
    yielded_s: float = -inf
    """End of the last yield of the step under way."""
    died: str = ""
    """Reason of a death while a step was under way."""
    faults: int = 0
    """Failed restores and canaries since the last canary that succeeded."""
    deaths: int = 0
    """Deaths since the last successful holder."""
    failures: int = 0
    """Quarantines since the last successful holder: the probe's pause doubles with each."""
    quarantine: str = ""
    """Reason for which it is not used until a probe; empty: it may be used."""
    probe_s: float = inf
    """Time of the probe."""
    probing: bool = False
    """A probe is due: it is loaded as soon as that needs no eviction, or a holder wants it."""
    left: Level = "cold"
    """Level at which its last stop left an engine that was given: its memory counts, although it is stopped for us."""
    stuck: bool = False
    """Its last stop failed, so that its memory is still counted."""
    found_by_s: float = inf
    """Time by which its residency has to be found."""
    unanswered_s: float | None = None
    """Time since which it has had a holder and has answered none, and was not found alive; None: it has answered."""
    unanswered: int = 0
    """Holders since then whose time was over."""
    failed_calls: int = 0
    """Holders in a row whose calls the engine has failed."""
    checking_s: float | None = None
    """Begin of the check of its liveness that is under way."""
    suspect: bool = False
    """It may hang, so it admits nobody before it has answered a holder, or a canary after its holders."""
    gpus: range = field(init=False)
    """GPUs of its chunk."""
    mask: int = field(init=False)
    """The same as bits."""

    def __post_init__(self) -> None:
        self.gpus, self.mask = self.id.chunk.gpus, self.id.chunk.mask

    @property
    def device_gb(self) -> float:
        """Device memory that it may use on each of its GPUs."""
        if self.claim == "awake":
            return self.spec.awake_gb
        return self.spec.asleep_gb.get(self.left if self.claim == "cold" else self.claim, 0.0)

    @property
    def host_gb(self) -> float:
        """Host memory that it may use."""
        return self.spec.host_gb.get(self.left if self.host == "cold" else self.host, 0.0)

    @property
    def ready(self) -> bool:
        """Whether a holder may be admitted, as far as the instance alone is concerned."""
        if self.place != "awake" or not self.checked or self.suspect or self.step is not None:
            return False
        return not self.leaving and not self.stop_why

    @property
    def yields(self) -> bool:
        """Whether its load or restore yields: nobody may wait for it now."""
        return self.yields_until_s is not None and self.step in ("load", "restore")

    @property
    def oldest(self) -> WaitingHolder | None:
        """Its first waiting holder."""
        return next(iter(self.waiting.values())) if self.waiting else None

    def overdue(self, now: float, max_wait_s: float) -> bool:
        """Return whether a holder has waited for `max_wait_s`."""
        return bool(self.waiting) and now >= next(iter(self.waiting.values())).arrived_s + max_wait_s

    def note_end(self, ended: HolderEnded, most_failed: int, now: float) -> None:
        """Note that an admitted holder, which was removed, has ended."""
        if ended.ok:
            self.unanswered_s, self.unanswered, self.suspect = (now if self.running else None), 0, False
            self.failed_calls = 0
        elif ended.unanswered:
            self.unanswered += 1
        elif ended.failed:
            self.failed_calls += 1
            self.suspect = self.suspect or self.failed_calls >= most_failed
        if self.suspect and not self.running:
            self.checked = False
            self.forget_unanswered()

    @property
    def answered_meanwhile(self) -> bool:
        """Whether it has answered a holder since the check under way began."""
        began_s = self.checking_s
        return began_s is not None and (self.unanswered_s is None or self.unanswered_s >= began_s)

    def forget_unanswered(self) -> None:
        """Forget what was noted of its answers: a new engine begins, or a canary decides."""
        self.unanswered_s, self.unanswered, self.checking_s, self.suspect = None, 0, None, False
        self.failed_calls = 0

    def kept_until_s(self) -> float:
        """End of its minimum residency; infinity while holders wait for it or use it. Overdue holders ignore it."""
        if self.waiting or self.running:
            return inf
        return self.restored_s + self.spec.min_residency_s if self.place == "awake" else -inf

    @property
    def active(self) -> bool:
        """Whether it matters to others on its GPUs: it has an engine, a holder, or something to do."""
        engine = (
            self.claim != "cold"
            or self.left != "cold"
            or self.host != "cold"
            or self.step is not None
            or self.state == "unknown"
        )
        to_do = self.waiting or self.running or self.leaving or self.stop_why or self.probing or self.activation
        return engine or bool(to_do)

    @property
    def dormant(self) -> bool:
        """Whether it has nothing to do, whatever changes on its GPUs: it is cold, asleep or idle."""
        if self.waiting or self.running or self.step is not None or self.activation is not None:
            return False
        if self.probing or self.quarantine or self.leaving or self.stop_why or self.drain_s is not None:
            return False
        return self.state not in ("unknown", "running", "draining")

    @property
    def resting(self) -> bool:
        """Whether it is at rest: dormant, and not awake. It changes by nothing but stimuli and decisions about it."""
        return self.claim != "awake" and not self.stuck and self.dormant

    @property
    def exclusive(self) -> bool:
        """Whether a step is under way beside which no step on its GPUs begins: it takes memory or uses the GPU."""
        return self.step in ("load", "restore", "canary")

    @property
    def stopped(self) -> bool:
        """Whether it is confirmed that it has no engine."""
        return self.claim == "cold" and self.host == "cold" and self.step is None
