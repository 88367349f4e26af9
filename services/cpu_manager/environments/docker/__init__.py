"""Environments in containers of a Docker engine. Guarantees: docs/docker.md.

The engine creates, starts and removes containers. If the manager shares the container's host, actions bypass the
engine (`direct_handle`): control groups assign cores and freeze, and a socket connects to the agent inside (`..agent`).
Otherwise `engine_handle` does the same by the engine's own API, slower.
"""
