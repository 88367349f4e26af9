"""The stack on one machine: embedded PostgreSQL and Valkey, every service as its own process, and who watches them.

Nothing here knows what a service does. ``home`` says where things lie, ``valkey`` and ``postgres`` how the two servers
are run, ``services`` which services there are, ``supervisor`` keeps them all alive and takes them all down.
"""
