"""Errors of the model server. Their messages are complete sentences for the operator or the caller."""

from __future__ import annotations

from shared.runtime.units import Seconds


class InvalidModel(Exception):
    """A model folder that cannot be served."""


class InsufficientMemory(Exception):
    """The device has too little free memory."""


class RequestRejected(Exception):
    """A request without a result: a status of HTTP, a code for programs and a message for people."""

    def __init__(self, status: int, code: str, message: str, retry_s: Seconds | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_s = retry_s
