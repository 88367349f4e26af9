"""Environments in containers of a Docker engine. Guarantees: docs/docker.md.

The engine creates, starts and removes containers. If the manager shares the container's host, actions bypass the
engine: `control_groups` assigns cores and freezes, and a socket connects to the agent inside (`..agent`).
Otherwise `through_engine` does the same by the engine's own API, slower.
"""
