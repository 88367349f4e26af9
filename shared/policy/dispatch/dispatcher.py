"""State machine of the dispatcher: queues + nodes + grants. Stimuli in, commands out.

Laws, held by tests/shared/policy/dispatch/test_dispatch_machine.py over random histories:
  - every request is answered exactly once, whatever happens to nodes, leaders and clients (`action_registry`);
  - no unit is granted twice: units are free again only after the node's report or the end of its incarnation, also the
    units of an attempt that is no longer needed (`resources.ledger`);
  - no quota is exceeded, and an attempt has all its units and quotas or none (`resources.quotas`);
  - a verdict (`ok`, `timeout`) is never invented: infrastructure failures have their own names (`attempt_handler`);
  - work that is not repeatable is never executed twice (`attempt_handler`);
  - a trajectory runs one action at a time, in one environment, and never in a new one after that has ended
    (`trajectories`, `environment_handler`).
The law in `scheduling_round` defines the order of grants.

`Dispatcher.handle` is the only entry. It is deterministic: the same configuration and the same stimuli give the same
commands. Nothing outside this package writes the dispatcher's state (tests/architecture/test_dispatcher_entry.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shared.policy.dispatch.action_registry import ActionRegistry
from shared.policy.dispatch.backlog import Backlog, survey
from shared.policy.dispatch.batch_snapshots import BatchSnapshot, batch_snapshots
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.holds import carry_holds
from shared.policy.dispatch.invariants import check_commands
from shared.policy.dispatch.quota_amounts import estimated
from shared.policy.dispatch.scheduling_round import schedule
from shared.policy.dispatch.stimuli import Stimulus
from shared.policy.dispatch.stimulus_handlers import Handler, StimulusHandlers
from shared.policy.dispatch.views import ActionSummary, LimitState, NodeSummary, QuotaOutlook, limit_states
from shared.policy.dispatch.waiting_reasons import waiting_reasons
from shared.policy.model.brakes import Brake
from shared.policy.model.formulation import Command
from shared.policy.model.quotas import Amounts
from shared.policy.model.waiting import WaitingReasons
from shared.policy.resources.quota_estimates import Estimate, EstimateKey
from shared.policy.resources.resource import Specs

Parts = tuple[StimulusHandlers, ClusterState, ActionRegistry]


@dataclass(slots=True)
class Dispatcher:
    """Dispatcher of the leader: its parts derive the consequences of stimuli, then a scheduling round grants what
    fits.
    """

    config: DispatchConfig = field(default_factory=DispatchConfig)
    specs: Specs = field(default_factory=dict)
    """Properties of the resources of nodes."""
    cluster: ClusterState = field(init=False)
    registry: ActionRegistry = field(init=False)
    handlers: StimulusHandlers = field(init=False)
    _handlers: Mapping[type[Stimulus], Handler] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.cluster = ClusterState(elastic=self.config.elastic, swap_wait_s=self.config.swap_wait_s)
        self.registry = ActionRegistry(self.cluster)
        self.handlers = StimulusHandlers(self.config, self.specs, self.cluster, self.registry)
        self._handlers = self.handlers.table()

    # ---- the entry ---------------------------------------------------------------------------------------------

    def handle(self, now: float, *given: Stimulus) -> list[Command]:
        """Handle stimuli of one moment. Returns the commands that follow, in order.

        The consequences of each stimulus come first, in the order of the stimuli. Then one scheduling round follows if
        a stimulus may have changed which grants are possible. A round costs more than the handlers, so pass
        stimuli of one moment in one call.

        Args:
            now: absolute seconds; never less than in an earlier call.
            given: the stimuli. `shared.policy.dispatch.stimuli` describes each.

        Raises:
            InvariantError: an invariant does not hold (`invariants`). After any error the state is not defined.
        """
        serial = self.cluster.newest_serial
        commands: list[Command] = []
        changed = False
        for stimulus in given:
            found = self._handlers[type(stimulus)](now, stimulus)
            if found is not None:
                changed = True
                commands += found
        if changed:
            commands += schedule(self.cluster, now)
            if self.handlers.late:
                commands += self.handlers.reject_late(now)
                commands += schedule(self.cluster, now)
        if commands:
            check_commands(self.cluster, self.registry.actions, commands, serial)
        return carry_holds(self.cluster.quotas, commands)

    # ---- reads: none changes the state -------------------------------------------------------------------------

    def survey(self, now: float = 0.0) -> Backlog:
        """Return the present backlog; see `backlog.survey`."""
        return survey(self.cluster, now)

    def learned_amounts(self, version: int) -> tuple[int, dict[EstimateKey, Estimate]]:
        """Return the version of the learned amounts, and those that have changed since that version."""
        return self.cluster.estimates.version, self.cluster.estimates.changed_since(version)

    def waiting_reasons(self, now: float = 0.0) -> WaitingReasons:
        """Return why actions wait for more than their turn; see `waiting_reasons.waiting_reasons`."""
        return waiting_reasons(self.cluster, now)

    def batch_snapshots(self) -> dict[str, BatchSnapshot]:
        """Return snapshots of the batches with unanswered requests; see `batch_snapshots.batch_snapshots`."""
        return batch_snapshots(self.cluster)

    def node_names(self) -> frozenset[str]:
        """Names of the present nodes."""
        return frozenset(self.cluster.nodes.present)

    def node(self, name: str) -> NodeSummary | None:
        """Return a view of a present node."""
        node = self.cluster.nodes.present.get(name)
        return None if node is None else NodeSummary.of(node)

    def action(self, action_id: str) -> ActionSummary | None:
        """Return a view of an unanswered action."""
        action = self.registry.actions.get(action_id)
        return None if action is None else ActionSummary.of(action)

    def target(self, pool: str) -> int | None:
        """Return the planner's target of a pool; None before the first one."""
        known = self.cluster.queues.pools.get(pool)
        return None if known is None else known.target

    def queued_in(self, pool: str) -> int:
        """Return how many actions are queued in a pool."""
        known = self.cluster.queues.pools.get(pool)
        return 0 if known is None else known.queued

    def has_node(self, name: str, incarnation: str) -> bool:
        """Return whether this incarnation is the present one of this node."""
        return self.cluster.nodes.incarnation(name, incarnation) is not None

    @property
    def unanswered(self) -> int:
        """Number of unanswered actions."""
        return len(self.registry.actions)

    @property
    def unfinished(self) -> bool:
        """Cancellations or deadlines are left for the next turn: a `TurnStarted` goes on with them."""
        return bool(self.handlers.cancellations) or self.registry.overdue

    def cancels(self, name: str) -> bool:
        """Return whether actions of this cancelled batch or ended trajectory are left for the next turn."""
        return name in self.handlers.cancellations

    def has_unanswered(self, batch: str) -> bool:
        """Return whether actions of this batch are unanswered."""
        return self.registry.has_members(batch)

    @property
    def next_wake_s(self) -> float:
        """Time at which the quotas of waiting work are refilled next: a `TickPassed` then may grant it. Or the time by
        which work must have been granted, if that is earlier. Infinity if no work waits for either.
        """
        return min(self.cluster.next_wake_s, self.registry.next_grant_deadline_s)

    def expected_amounts(self, tenant: str, work: str, amounts: Amounts) -> Amounts:
        """Return amounts, with estimates for those that are left to the mesh. `work`: task, otherwise kind."""
        return estimated(self.cluster, tenant, work, amounts)

    def quota_outlook(self, amounts: Amounts, now: float) -> QuotaOutlook:
        """Return when these amounts can be taken, after those that actions in an order wait for: stuck work takes
        nothing. If concurrency lacks, O(holds that have to end first).
        """
        ahead = self.cluster.queues.waiting_amounts.sums(amounts)
        return QuotaOutlook.of(self.cluster.quotas, amounts, ahead, now)

    def limit_states(self, names: Iterable[str], now: float) -> list[LimitState]:
        """Return what is free of each limit of these quotas."""
        return limit_states(self.cluster.quotas, names, now)

    def brakes(self) -> dict[str, Brake]:
        """Return the brakes of quotas: by what external services have answered."""
        return dict(self.cluster.quotas.brakes.by_quota)

    @property
    def parked(self) -> int:
        """Number of actions that are parked, or wait for units to continue."""
        return sum(action.parked for held in self.cluster.granted.values() for action in held.values())

    @property
    def planned(self) -> bool:
        """A planner is alive, as far as reported."""
        return self.cluster.queues.planned

    # ---- the state as one value, for logs ----------------------------------------------------------------------

    def parts(self) -> Parts:
        """Return the state itself, for an immediate copy. Nothing else may be done with it."""
        return self.handlers, self.cluster, self.registry

    @classmethod
    def of_parts(cls, parts: Parts) -> Dispatcher:
        """Return a dispatcher that continues from a copy of `parts`."""
        handlers, cluster, registry = parts
        dispatcher = cls(handlers.config, handlers.specs)
        dispatcher.handlers, dispatcher.cluster, dispatcher.registry = handlers, cluster, registry
        dispatcher._handlers = handlers.table()
        return dispatcher

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        self.registry.check()
        self.cluster.check()
