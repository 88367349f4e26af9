"""Node agent: the part that all managers share, over the `Executor` of each (ADR 0048)."""
