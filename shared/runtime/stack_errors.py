"""Errors before a service runs. Each message has an instruction."""


class StackError(Exception):
    """The stack cannot be started, stopped or found. The message is for the person at the terminal."""
