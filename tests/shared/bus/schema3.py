"""A store as the release of schema 3 left it: the keys that its function library wrote, as literal commands.

Batch b1 has one waiting, one answered and one archived action, and answers of trajectory t1. Outside batches one action
is queued (and its cancellation requested), one granted in its second stage, one answered, one archived; in the
trajectory one is granted and one answered.
"""
# ruff: noqa: E501

from __future__ import annotations

from typing import Final

Command = tuple[str | bytes | int, ...]

# fmt: off
COMMANDS: Final[tuple[Command, ...]] = (
    ("SADD", "acted:t1", "action:acted"),
    ("EXPIRE", "acted:t1", 81600),
    ("HSET", "action:acted", "d", "0123456789abcdef", "e", "1700000000000-8", "b", "", "t", "t1", "a", '{"id":"acted"}'),
    ("EXPIRE", "action:acted", 60000),
    ("HSET", "action:acts", "d", "0123456789abcdef", "e", "1700000000000-7", "b", "", "t", "t1", "g", "1:n"),
    ("HSET", "action:answered", "d", "0123456789abcdef", "e", "1700000000000-2", "b", "", "a", '{"id":"answered"}'),
    ("EXPIRE", "action:answered", 60000),
    ("HSET", "action:archived", "d", "0123456789abcdef", "e", "1700000000000-3", "b", "", "m", "1"),
    ("EXPIRE", "action:archived", 60000),
    ("HSET", "action:granted", "d", "0123456789abcdef", "e", "1700000000000-1", "b", "", "s", "1", "c", "[]", "g", "1:n"),
    ("HSET", "action:queued", "d", "0123456789abcdef", "e", "1700000000000-0", "b", ""),
    ("HSET", "action:scored", "d", "0123456789abcdef", "e", "1700000000000-5", "b", "b1", "r", "1700000000001-1"),
    ("EXPIRE", "action:scored", 60000),
    ("HSET", "action:waits", "d", "0123456789abcdef", "e", "1700000000000-4", "b", "b1"),
    ("XADD", "actions", "1700000000000-0", "m", b"\x85\xa4kind\xb3action.submitted.v1\xa6action\xa6queued\xa6tenant\xa3ada\xa6stages\x90\xa8budget_s\xcb@N\x00\x00\x00\x00\x00\x00", "i", "-1", "a", "action:queued", "b", ""),
    ("XADD", "actions", "1700000000000-1", "m", b"\x85\xa4kind\xb3action.submitted.v1\xa6action\xa7granted\xa6tenant\xa3ada\xa6stages\x90\xa8budget_s\xcb@N\x00\x00\x00\x00\x00\x00", "i", "-1", "a", "action:granted", "b", ""),
    ("XADD", "actions", "1700000000000-4", "m", b"\x86\xa4kind\xb3action.submitted.v1\xa6action\xa5waits\xa6tenant\xa3ada\xa5batch\xa2b1\xa6stages\x90\xa8budget_s\xcb@N\x00\x00\x00\x00\x00\x00", "i", "0", "a", "action:waits", "b", "b1"),
    ("XADD", "actions", "1700000000000-7", "m", b"\x86\xa4kind\xb3action.submitted.v1\xa6action\xa4acts\xa6tenant\xa3ada\xa6stages\x90\xa8budget_s\xcb@N\x00\x00\x00\x00\x00\x00\xaatrajectory\xa2t1", "i", "-1", "a", "action:acts", "b", ""),
    ("XADD", "actions", "1700000000002-0", "m", b"\x83\xa4kind\xbaaction.cancel-requested.v1\xa6reason\xaanot needed\xa6action\xa6queued"),
    ("XADD", "answered", "1700000000001-0", "m", b"\x83\xa4kind\xabanswered.v1\xa7batches\x91\xa2b1\xa7actions\x95\xa5moved\xa6scored\xa8answered\xa8archived\xa5acted"),
    ("ZADD", "archived", "1", "ada/b1"),
    ("HSET", "archived:b1", "moved", "01234567"),
    ("HSET", "batch:b1", "state", "open", "asked", "0", "size", "0", "submitted", "3", "answered", "2", "opened_ms", "1700000000000", "active_ms", "1700000000000", "tenant", "ada", "task", "t", "workflow", "{}", "first_ms", "1700000000000", "unqueued_end_ms", "1000", "archived", "1700000000001-0"),
    ("XADD", "batches", "1700000000000-0", "m", b"\x89\xa4kind\xafbatch.opened.v1\xa5batch\xa2b1\xa6tenant\xa3ada\xa4task\xa1t\xa4size\xc0\xa9opened_at\xcb?\xf0\x00\x00\x00\x00\x00\x00\xa6stages\x90\xb1max_extra_delay_s\xcb@\x00\x00\x00\x00\x00\x00\x00\xa9resources\xcb?\xf0\x00\x00\x00\x00\x00\x00"),
    ("XADD", "batches", "1700000000000-1", "m", b"\x83\xa4kind\xb6batch.first-arrival.v1\xa5batch\xa2b1\xaaarrived_at\xcbA\xda\xc1\r\t\xff+\x02"),
    ("ZADD", "batches:open", "1700000000000", "b1"),
    ("SET", "batchkey:ada:t:k1", "b1"),
    ("EXPIRE", "batchkey:ada:t:k1", 604800),
    ("HSET", "environments:b1", "answered", "1", "count:refused", "1", "why:refused", "no image"),
    ("ZADD", "expiring", "29924961", "29924961"),
    ("HSET", "expiring:29924961", "ada", "170"),
    ("XADD", "grants.n.1", "1700000000000-0", "m", "m"),
    ("XADD", "grants.n.1", "1700000000001-0", "m", "m"),
    ("XADD", "grants.n.1", "1700000000001-1", "m", "m"),
    ("EXPIRE", "grants.n.1", 120),
    ("HSET", "ids", "key", "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk", "older_until_ms", "1795437614986"),
    ("HSET", "kept", "ada", "1020"),
    ("HSET", "kept:batches", "ada/b1", "265"),
    ("SET", "leader", "former"),
    ("PEXPIRE", "leader", 200),
    ("SET", "leader:epoch", "1"),
    ("HSET", "placements", "t1", b"\x92\xa1n\x81\xa9memory_mb\xcd\x02\x00"),
    ("SET", "planner:lease", "p"),
    ("PEXPIRE", "planner:lease", 200),
    ("XADD", "results:b1", "1700000000001-1", "a", '{"id":"scored"}'),
    ("SET", "schema", "3"),
    ("ZADD", "trajectories:due", "1795459267988", "t1"),
    ("ZADD", "trajectories:open", "1700000000000", "t1"),
    ("HSET", "trajectory:t1", "state", "open", "reason", "", "digest", "dddddddddddddddd", "lifetime_s", "21600", "keep_s", "60000", "opened_ms", "1700000000000", "active_ms", "1700000000000", "tenant", "ada", "task", "", "group", "", "request", "q1", "batch", "b1", "class", "default", "spec", b"\x80", "n", "n"),
    ("EXPIRE", "trajectory:t1", 81600),
    ("SET", "trajectorykey:ada:q1", "t1"),
    ("EXPIRE", "trajectorykey:ada:q1", 81600),
    ("ZADD", "unarchived", "1700000000001", "ada/b1"),
    ("XADD", "unarchived:actions", "1700000000001-0", "k", "answered", "s", "267", "t", "ada"),
    ("XADD", "unarchived:actions", "1700000000001-2", "k", "acted", "s", "264", "t", "ada"),
)
