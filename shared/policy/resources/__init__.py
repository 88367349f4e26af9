"""Units of nodes, and what holds them."""
