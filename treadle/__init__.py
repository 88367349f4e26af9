"""Treadle for people: the command line, the client, the local stack, grading; research parts in `treadle.lab`."""
