"""Outgoing HTTP calls: judged addresses, redirects by our rules, secrets by reference, bounded time and size."""

from services.quota_manager.outgoing.calls import HeaderValue, OutgoingAnswer, OutgoingCall, SecretName
from services.quota_manager.outgoing.client import Outgoing, open_outgoing
from services.quota_manager.outgoing.errors import (
    BrokenAnswer,
    ForbiddenAddress,
    InvalidCall,
    NoFirstByte,
    NotConnected,
    OutgoingError,
)

__all__ = [
    "BrokenAnswer",
    "ForbiddenAddress",
    "HeaderValue",
    "InvalidCall",
    "NoFirstByte",
    "NotConnected",
    "Outgoing",
    "OutgoingAnswer",
    "OutgoingCall",
    "OutgoingError",
    "SecretName",
    "open_outgoing",
]
