"""Trusted entries that run in a forked zygote, behind its walls.

A harness is a module `harnesses/<name>.py` with one function::

    def main(source: str, payload: bytes, report: Callable[[bytes], None]) -> None

It is imported by the zygote before any fork, so its module must hold no secret and do no work at import. `main` is
called in the program's process when every wall stands: `source` and `payload` are the job's, `report` writes to a
descriptor that only this process has, under a number drawn at random and closed on exec. It may raise: SystemExit sets
the exit code, anything else is printed and ends with 1, as the interpreter itself does. Code it runs lives in the same
process and can do what the process can; a harness makes forging a report hard, the walls make it harmless to others.
"""
