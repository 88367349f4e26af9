"""Owns the batch histories and decides how many units each pool shall hold (DistRS §5).

Promises: a batch that ended is in Postgres before its message is acknowledged, once, whatever dies; every decision is
published with its reason and kept. Dead, it delays nothing: pools stay as they are, and the dispatcher never starves.
"""
