"""The keys of Valkey: the name, type, fields and lifetime of each.

Only this package formats a key or names a field. Entries of a stream have one field `m`, the message
(`shared.messages`), except where the key says otherwise. Fields that end in `_ms` are Unix milliseconds by Valkey's
clock.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from shared.messages import actions, batches, environments, nodes, outcomes, quotas, routing


class Role(StrEnum):
    """A task of the mesh that one process at a time does."""

    DISPATCHER = "dispatcher"
    """Dispatches; its epoch fences the writes of leaders."""
    PLANNER = "planner"
    """Plans. While no process has this role, the leader adds a zero-queue rule to the targets (`Pool.wanted`)."""
    ARCHIVER = "archiver"
    """Moves answers to Postgres. The lease only saves work."""
    ROUTER = "router"
    """Admits model calls to inference workers."""


# ---- of one action ---------------------------------------------------------------------------------------------------


def action(name: str) -> str:
    """Return the hash of an action, from its submission until its answer's retention is over.

    digest: of the request's content; entry: its journal entry; batch, or empty; trajectory.
    Unanswered: grant: `attempt:node` of its last grant; stage: its index; carried: earlier measurements, JSON;
    parking: grant, time (ms) and reason of the newest request to park it; resume: journal entry of a later request to
    resume it, or `sent` after the message that fulfils it; artifacts: stages that have left one, with spaces between;
    `artifact:<stage>`: its bytes.
    Of a lease (`held_leases`), from its grant: fence; ttl_ms, granted_ms, expires_ms; ended: released, expired or
    revoked; used: amounts with which it was released, JSON, if it was settled.
    Answered: answer: JSON (outside a batch); result: id of its answer in the batch's stream; or archived: 1, the answer
    is in Postgres. Actions of a batch whose answers are archived have only a compact id (`archived_of`).
    """
    return f"action:{name}"


# ---- of one batch ----------------------------------------------------------------------------------------------------


def batch(name: str) -> str:
    """Return the hash of a batch. It expires `keep_batch_s` after the batch's end.

    state, size (0: unknown), asked: the caller's size; submitted, answered: counts; opened_ms, first_ms: first arrival,
    active_ms: last submission, ended_ms; tenant, task, workflow: the task when it was opened, JSON;
    unqueued_end_ms: when the last of the answered would have finished without queueing;
    progress: entry of `batches` with the newest report of its rollout; archived: last result id that is in Postgres;
    keep_s: retention where DELETE has shortened it.
    """
    return f"batch:{name}"


def results(name: str) -> str:
    """Return the stream of a batch's answers in Valkey. Ids are the cursors of `after=`; a: the answer, JSON."""
    return f"results:{name}"


def archived_of(name: str) -> str:
    """Return the hash of a batch's compact ids: action -> first 8 bytes of its digest. It expires with the batch."""
    return f"archived:{name}"


def environments_of(name: str) -> str:
    """Return the hash that counts answers in trajectories that name the batch. It expires with the batch.

    answered; of the masked ones count:<how it ended> and why:<how it ended>, the newest reason; used:<name>, the sum of
    their usage.
    """
    return f"environments:{name}"


def batch_group(name: str) -> tuple[str, str, str, str]:
    """Return the keys of a batch in the order in which the function library takes them."""
    return batch(name), results(name), archived_of(name), environments_of(name)


def submission_group(name: str) -> tuple[str, str]:
    """Return the keys of a batch that a submission needs."""
    return batch(name), archived_of(name)


# ---- of one trajectory -----------------------------------------------------------------------------------------------


def trajectory(name: str) -> str:
    """Return the hash of a trajectory. It expires `keep_s` after the end.

    state (open, closed, expired, lost), reason, digest, lifetime_s, keep_s, opened_ms, active_ms, ended_ms,
    node: where its environment was placed; tenant, task, batch, group, request, class: of nodes; spec: msgpack;
    priority, if it was changed; sampling of its model calls, JSON, if it has some.
    """
    return f"trajectory:{name}"


def acted(name: str) -> str:
    """Return the set of an open trajectory's answered actions (keys of actions)."""
    return f"acted:{name}"


def trace(name: str) -> str:
    """Return the hash of a trajectory's trace: action -> `shared.bus.traces.TracedAction`. It expires with the record
    of the trajectory.
    """
    return f"trace:{name}"


def trajectory_group(name: str) -> tuple[str, str]:
    """Return the keys of a trajectory in the order in which the function library takes them."""
    return trajectory(name), acted(name)


# ---- of one task -----------------------------------------------------------------------------------------------------


def task(tenant: str, name: str) -> str:
    """Return the hash of a declared task: task: JSON; version: how often it was declared."""
    return f"task:{tenant}:{name}"


def tasks(tenant: str) -> str:
    """Return the set of a tenant's task names."""
    return f"tasks:{tenant}"


def batch_key(tenant: str, name: str, key: str) -> str:
    """Return the string that holds the batch that this idempotency key has opened. Seven days."""
    return f"batchkey:{tenant}:{name}:{key}"


def trajectory_key(tenant: str, request: str) -> str:
    """Return the string that holds the trajectory that this request id has opened.

    It expires after the trajectory's lifetime and retention, counted from the opening.
    """
    return f"trajectorykey:{tenant}:{request}"


# ---- of one caller ---------------------------------------------------------------------------------------------------


def retries(digest: str) -> str:
    """Return the list of actions of `/run_code` that wait for a retry with this body. It expires."""
    return f"retry:{digest}"


def swerex(trajectory_name: str) -> str:
    """Return the hash of a trajectory's shell sessions: name -> token of the request that created it.

    It expires with the trajectory.
    """
    return f"swerex:{trajectory_name}"


def swerex_closing(trajectory_name: str) -> str:
    """Return the hash of closing requests: token -> token of the closed session. It expires with the trajectory."""
    return f"swerex:{trajectory_name}:closing"


def swerex_partial(trajectory_name: str) -> str:
    """Return the hash of outputs of timed-out commands: session -> output. It expires after five minutes."""
    return f"swerex:{trajectory_name}:partial"


# ---- of one process --------------------------------------------------------------------------------------------------


def leader(role: Role) -> str:
    """Return the string that holds the present holder of a role. It expires by itself."""
    return f"leader:{role}"


def epoch(role: Role) -> str:
    """Return the counter of a role's holders. It never expires, and fences what an earlier holder still writes."""
    return f"epoch:{role}"


def replica(name: str) -> str:
    """Return the string that exists while a replica of the proxy is alive."""
    return f"replica:{name}"


def pulled(engine: str, node: str) -> str:
    """Return the hash of images that a node pulled itself: image -> time of its last use, Unix seconds."""
    return f"pulled:{engine}:{node}"


def grants(node: str, incarnation: str) -> str:
    """Return the stream of messages to one node. It expires 120 s after the last one."""
    return f"grants.{node}.{incarnation}"


# ---- of the mesh -----------------------------------------------------------------------------------------------------

ACTIONS: Final = actions.ACTIONS.name
"""Stream: the journal. An entry exists exactly as long as its action is unanswered. Beside the message m: index in the
batch or -1; action: its key; batch; trajectory (only if it has one); priority of that trajectory, if it was changed;
decided: epoch of the leader that decided about it before it was journaled (leases of its own callers)."""
OUTCOMES: Final = outcomes.OUTCOMES.name
"""Stream: reports of attempts and environments, until what follows from them is written."""
NODES: Final = nodes.NODES.name
"""Stream: hellos, heartbeats and byes; bounded, so in a large mesh a hello leaves it before the next one."""
HELLOS: Final = "hellos"
"""Hash: node -> its newest hello, until its Bye or an hour of silence; 4,096 nodes at most."""
HELLOS_AT: Final = "hellos:at"
"""Sorted set: the same nodes by the time (ms) of their last hello."""
GENERATIONS: Final = "generations"
"""Counter of started managers."""
ANSWERED: Final = outcomes.ANSWERED.name
"""Stream: ids of answered actions, 10 s."""
BATCHES: Final = batches.BATCHES.name
"""Stream: events of batches, read by the consumer group `planner`."""
TRAJECTORIES: Final = environments.TRAJECTORIES.name
"""Stream: images of expected environments; bounded."""
BATCHES_OPEN: Final = "batches:open"
"""Sorted set: batches that have not ended, by time of opening (ms)."""
TRAJECTORIES_OPEN: Final = "trajectories:open"
"""Sorted set: open trajectories by time of opening (ms)."""
TRAJECTORIES_DUE: Final = "trajectories:due"
"""Sorted set: open trajectories by the time (ms) at which each ends unless an action comes before."""
TRAJECTORIES_ENDED: Final = "trajectories:ended"
"""Sorted set: ended trajectories by time of end (ms)."""
PLACEMENTS: Final = "placements"
"""Hash: trajectory -> packed {node, units} of its environment, until that has ended."""
SUSPECTS: Final = "suspects"
"""Hash: action -> leaders' terms that have failed while the dispatcher handled it; an hour after the last one."""
TENANTS: Final = "tenants"
"""Hash: tenant -> weight, for tenants whose weight was set."""
TENANT_CHANGES: Final = "tenants:changes"
"""Counter of the changes of that hash."""
QUOTAS: Final = "quotas"
"""Hash: quota -> its limits, JSON."""
QUOTA_HOLDS: Final = "quotas:holds"
"""Hash: `action/stage/attempt` -> hold of the attempt, JSON; from its grant until its end is written."""
QUOTA_LEVELS: Final = "quotas:levels"
"""Hash: `<period or empty> <quota>` -> amount that is missing from that rate's full bucket, at what time
(Unix seconds), and its refill per second, with spaces between. After its quota was deleted, until it has refilled;
without refill 7 days."""
QUOTA_BRAKES: Final = "quotas:brakes"
"""Hash: quota -> its brake, JSON, while its external service does not answer as it should."""
QUOTA_ESTIMATES: Final = "quotas:estimates"
"""Hash: JSON of [tenant, task or kind, quota] -> JSON of the last amounts that were used, 32 at most; 1,024 fields."""
QUOTA_CHANGES: Final = quotas.QUOTA_CHANGES.name
"""Stream: changed limits; bounded."""
LEASES_DUE: Final = "leases:due"
"""Sorted set: leases that callers hold (ids of their actions) by the time (ms) at which each expires."""
LEASE_FENCES: Final = "leases:fences"
"""Counter of granted leases: the newest fence."""
BACKLOG: Final = "backlog"
"""Hash: what waits, as last published by the leader: pools, stuck: actions of batches, quotas, batches: open
ones."""
REASONS: Final = "backlog:reasons"
"""Hash: why actions wait for more than their turn, as last published by the leader. `action:stage` -> reason, and
`classes`: class of work -> reason, while not all such actions have a field."""
KEPT: Final = "kept"
"""Hash: tenant -> estimated bytes of Valkey's memory that its answers and compact ids take."""
KEPT_BATCHES: Final = "kept:batches"
"""Hash: `tenant/batch` -> the part of `kept` that its results take."""
UNARCHIVED: Final = "unarchived"
"""Sorted set: `tenant/batch` by the time (ms) of its oldest result in Valkey."""
UNARCHIVED_ACTIONS: Final = "unarchived:actions"
"""Stream: answers outside batches that are to be archived: action, bytes, tenant."""
ARCHIVED: Final = "archived"
"""Sorted set: `tenant/batch` by the number of its compact ids; rows of these batches are in Postgres."""
EXPIRING: Final = "expiring"
"""Sorted set: minutes (Unix) in which compact ids of actions outside batches expire."""
SERVICES_DECLARED: Final = "serving:declared"
"""Hash: model service -> number of its change, a space, and its declaration over REST, JSON."""
SERVICES_CHANGES: Final = "serving:changes"
"""Counter of the changes of that hash."""
SERVING: Final = "serving"
"""Hash: node -> page of its model services, JSON, as it last published; an hour after it was last seen."""
WORKERS: Final = "workers"
"""Hash: inference worker -> the worker as registered, JSON."""
WORKER_VIEWS: Final = "workers:views"
"""String: what each inference worker does, JSON, as the leader of the routers sees it. Ten seconds."""
ROUTER_PINS: Final = "router:pins"
"""Hash: trajectory -> its inference worker, while it is used."""
ROUTERS: Final = "routers"
"""Sorted set: `<replica> <address>` of the trajectory router's replicas, by the time (ms) until which each is alive."""
ROUTING: Final = routing.ROUTING.name
"""Stream: messages between replicas of the trajectory router; bounded."""
IDS: Final = "ids"
"""Hash: key: of derived ids; older_until_ms: until when ids of older versions are looked up."""
MESH: Final = "mesh"
"""String: identity of the mesh, a random id."""
SCHEMA: Final = "schema"
"""String: version of the stored data."""


def expiring(minute: int) -> str:
    """Return the hash: tenant -> the part of `kept` that is free after that minute."""
    return f"expiring:{minute}"


KeysOf = Callable[[str], tuple[str, ...]]


class KeyList:
    """Keys of one call, each once. Functions name a key by its position, because many items share one."""

    __slots__ = ("_positions", "listed")

    def __init__(self, *first: str) -> None:
        self.listed = list(first)
        self._positions: dict[tuple[str, KeysOf], int] = {}

    def position(self, name: str, keys_of: KeysOf) -> int:
        """Return the position, from 1, of the first of `keys_of(name)`. The others follow it."""
        known = self._positions.get((name, keys_of))
        if known is None:
            known = self._positions[name, keys_of] = len(self.listed) + 1
            self.listed += keys_of(name)
        return known
