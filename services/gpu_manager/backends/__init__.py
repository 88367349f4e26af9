"""Backends: adapters to kinds of inference engines, behind one protocol (`protocol.py`)."""
