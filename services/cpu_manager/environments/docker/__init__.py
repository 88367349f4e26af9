"""Environments in containers of a Docker engine. What it promises: docs/docker.md.

The engine makes, starts and removes containers. Between that an action goes past it, where the manager shares the
container's host: `control_groups` gives cores and freezes, and the resident inside (`..resident`) is spoken to through
its socket. Where it does not, `through_engine` does the same by the engine's own API, slower.
"""
