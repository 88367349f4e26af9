"""Recorded workloads, from files and to them: what the replay may not do itself."""
