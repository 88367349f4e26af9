"""Calls of external services for the mesh: outgoing HTTP, its addresses and its secrets."""
