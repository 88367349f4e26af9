"""Values that all of the policy shares: what an action needs, how it stretches, how it ended."""
