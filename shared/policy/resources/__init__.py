"""Units that nodes offer, and who holds them."""
