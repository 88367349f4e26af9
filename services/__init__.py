"""Treadle's services: one FastAPI app and one process each. No service imports another (tests/architecture)."""
