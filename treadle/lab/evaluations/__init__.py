"""Evaluations of papers, run for a person: what the replays work out, on several processes, as tables and plots.

`pool` runs jobs, a package for each paper says which, and what to print of them. The replays themselves know neither
clock nor file.
"""
