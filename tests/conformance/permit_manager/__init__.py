"""A manager that hands out permits: one package with one class, as the smallest example of a new manager."""
