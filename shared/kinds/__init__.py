"""Action kinds as services declare them, and the one place that turns (kind, parameters, units) into a stage."""
