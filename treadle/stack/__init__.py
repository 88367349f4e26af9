"""The stack on one machine: embedded PostgreSQL and Valkey, each service as its own process, and their supervisor.

Nothing here depends on what a service does. ``home`` has the paths, ``valkey`` and ``postgres`` start the two servers,
``services`` lists the services, ``supervisor`` keeps all of them running and stops them.
"""
