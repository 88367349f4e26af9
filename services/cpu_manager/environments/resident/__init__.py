"""The helper that lives in every environment and acts in it. Standard library of Python 3.6 alone, nothing of ours.

It is pid 1 of its environment: it adopts and reaps orphans, nothing in the environment can kill it, and its end is the
environment's. One thread, one selector, no waiting but in it. It does one action at a time, for one client, the
manager; what it tells is only as true as the programs it lives with, so the manager bounds and checks every word.

`bundle.py` packs these modules into one file that any image's Python can run.
"""
