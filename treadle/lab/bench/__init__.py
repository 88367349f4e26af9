"""``treadle bench``: what the mesh costs, in the terms it promises, beside other systems on the same machine.

Load comes from closed loops of asyncio callers over aiohttp. Systems that are compared take turns, round by round, so
that a machine whose speed drifts is unfair to none; a figure is the median of its rounds.
"""
