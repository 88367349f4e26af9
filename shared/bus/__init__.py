"""The bus: Valkey streams, the atomic functions over them, and the loops that read them."""
