"""The node agent: all that every manager is, over an `Executor` that is the manager's own (ADR 0048)."""
