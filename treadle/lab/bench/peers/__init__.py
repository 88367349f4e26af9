"""Other systems under the same load: a durable queue (dramatiq) and a remote call (Ray).

Neither is a dependency. They live in an environment of their own (``.peers/``), each as a process that plays a round
whenever it is told to.
"""
