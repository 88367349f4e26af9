"""``treadle bench``: costs of the mesh, in the terms of its targets, beside other systems on the same machine.

Closed loops of asyncio callers over aiohttp generate the load. Compared systems take turns, round by round, so that a
change of the machine's speed affects all of them. A figure is the median of its rounds.
"""
