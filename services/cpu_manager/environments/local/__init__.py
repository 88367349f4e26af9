"""Environments in the sandbox's own walls, without a container engine. Guarantees: docs/environments.md.

`cells` starts permanent cells, `suspension` freezes and confines them, `hold` is one cell as a `Hold`, `runtime` is the
`Runtime`.
"""
