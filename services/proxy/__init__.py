"""HTTP edge and dispatcher: journals requests, orders them by batch, grants units, returns answers.

Any number of replicas serve HTTP; the one that holds the lease dispatches.
"""
