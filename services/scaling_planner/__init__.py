"""The service that stores batch histories and decides how many units each pool must hold (DistRS §5).

Promises: a batch that has ended is stored in Postgres once, before its message is acknowledged, whatever fails; every
decision is published with its reason and stored. If the service is down, nothing is delayed: pools keep their targets,
and the dispatcher never starves work.
"""
