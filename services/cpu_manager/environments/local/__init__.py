"""Environments in the sandbox's own walls, without a container engine. What it promises: docs/environments.md.

`cells` starts a cell that stays, `suspension` says how it is frozen and confined, `hold` is one cell as a `Hold`,
`runtime` is the `Runtime`.
"""
