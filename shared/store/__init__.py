"""Postgres: batch histories and plans. Repositories speak frozen records and never commit; the edge does.

Nothing on the path of an action writes to it: the planner writes history behind, one row of arrays a batch (ADR 0005),
and answers older than a minute move here from Valkey (ADR 0031). They are read here where Valkey has them no more.
"""
