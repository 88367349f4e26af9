"""Environments in the sandbox's own walls, without a container engine. Guarantees: docs/environments.md.

`cells` starts permanent cells, `suspension` freezes and confines them, `cell_handle` is the `EnvironmentHandle` of one,
`runtime` is the `Runtime`.
"""
