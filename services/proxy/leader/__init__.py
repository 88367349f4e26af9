"""The one replica that dispatches: its lease, its take-over, and the dispatcher with sockets."""
