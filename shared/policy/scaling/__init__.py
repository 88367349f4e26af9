"""The planner: how many units to own, from the history of batches (DistRS §5)."""
