"""Valkey with the functions loaded."""

from tests.shared.bus.fixtures import journal, reader, valkey

__all__ = ["journal", "reader", "valkey"]
