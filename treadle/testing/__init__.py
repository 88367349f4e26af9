"""Servers and whole stacks for tests and demos. Shipped, so that users can test against the real thing."""
