"""Processes inside the walls: the zygote, the init of each cell, the program. Standard library only.

Processes, from the outside in::

    manager ── zygote (pre-imported interpreter behind walls; reads requests, never payloads)
                 └─ init of a cell (pid 1 of its pid namespace; forks one program after another, waits, reaps, fetches)
                      └─ program (gives up its rights; reads its program file only after every wall is up)
"""
