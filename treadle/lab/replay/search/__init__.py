"""ARL-Tangram's DeepSearch (§6.2) in virtual time: search agents that share the limits of external services."""
