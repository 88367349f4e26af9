"""Action kinds as their executors declare them, and the one place that turns (kind, parameters, units) into a stage."""
