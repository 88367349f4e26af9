"""Postgres: batch histories and plans. Repositories speak frozen records and never commit; the edge does.

Nothing on the path of an action touches it: the planner writes history behind, one row of arrays a batch (ADR 0005).
"""
