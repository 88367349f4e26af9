"""Outgoing HTTP calls: judged addresses, redirects by our rules, secrets by reference, bounded time and size."""
