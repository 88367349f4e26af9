"""Calls of external services: grants of quotas become HTTP calls, their answers become outcomes and feedback."""
