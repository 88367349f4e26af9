"""The one replica that dispatches: its lease, its takeover, and the dispatcher connected to streams."""
