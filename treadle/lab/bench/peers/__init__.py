"""Other systems under the same load: a durable queue (dramatiq) and a remote call (Ray).

Neither is a dependency. They are installed in a separate environment (``.peers/``). Each is a process that runs a round
on request.
"""
