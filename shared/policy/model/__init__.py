"""Values that all of the policy shares: the needs of an action, its elasticity, its end."""
