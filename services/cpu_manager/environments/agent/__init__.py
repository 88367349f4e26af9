"""Agent of an environment: the process in it that executes its actions. Only the standard library of Python 3.6.

It is pid 1 of its environment: it adopts and reaps orphans, nothing in the environment can kill it, and the environment
ends with it. It has one thread and one selector, and waits only there. It executes one action at a time, for one
client, the manager. Programs beside it may falsify what it reports, so the manager bounds and checks every reply.
"""
