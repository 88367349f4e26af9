"""Peers as they were measured once, for runs without ``--peers``.

Two cores, Python 3.11, loopback, an empty task, 64 asyncio callers, one worker process; medians of interleaved rounds.
A rate is a matter of the machine: ``--peers`` measures them here and now.
"""

DRAMATIQ_RATE = 1_220.0
DRAMATIQ_P50_MS = 54.0
RAY_RATE = 1_560.0
