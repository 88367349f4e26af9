"""What can go wrong before a service runs; each message says what to do."""


class StackError(Exception):
    """The stack cannot be started, stopped or found. The message is for the person at the terminal."""
