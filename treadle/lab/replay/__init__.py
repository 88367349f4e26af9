"""Recorded or generated workloads, replayed in virtual time by the decisions of `shared.policy`."""
