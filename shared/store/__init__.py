"""Postgres: batch histories and plans. Repositories use frozen records and never commit; their callers do.

No action waits for a write here. The planner writes history afterwards, one row of arrays per batch (ADR 0005). Answers
older than a minute move here from Valkey (ADR 0031), and are read here when Valkey no longer has them.
"""
