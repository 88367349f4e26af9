"""The front door: takes requests, keeps them in the journal, orders them by batch, grants units, hands answers back.

Any number of replicas serve HTTP; the one that holds the lease dispatches.
"""
