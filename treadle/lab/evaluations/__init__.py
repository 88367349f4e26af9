"""Evaluations of papers for people: replays on several processes, as tables and plots.

`pool` runs jobs. A package for each paper defines its jobs and its report. The replays themselves use no clock and no
file.
"""
