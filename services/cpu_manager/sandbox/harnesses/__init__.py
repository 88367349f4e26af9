"""Trusted entries that run in a forked zygote, behind its walls.

A harness is a module `harnesses/<name>.py` with one function::

    def main(source: str, payload: bytes, report: Callable[[bytes], None]) -> None

The zygote imports it before any fork, so its module must hold no secret and do no work at import. `main` is called in
the program's process after every wall is up: `source` and `payload` are the job's. `report` writes to a descriptor that
only this process has, under a random number and closed on exec. `main` may raise: SystemExit sets the exit code; any
other exception is printed and gives exit code 1, as in the interpreter. Code that it runs is in the same process and
can do what the process can. A harness makes forging a report hard; the walls make it harmless to others.
"""
