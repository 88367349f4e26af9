"""Parts that services share: words, messages, the bus, the store, policy. Nothing here imports a service."""
