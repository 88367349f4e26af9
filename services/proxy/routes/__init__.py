"""The documented routes beside the hot ones."""
