"""What ends a measurement."""


class BenchError(Exception):
    """The mesh, or a peer, did not do what was asked of it; the message says what it did instead."""
