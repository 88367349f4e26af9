"""Walls around code that models have written: system calls, their filter, and the view of the host."""
