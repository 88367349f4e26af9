"""Decisions: pure, synchronous, without clock, IO, logging or globals. Time and chance are arguments."""
